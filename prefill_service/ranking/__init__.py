"""Token ranking: how much each prompt token matters, and which tokens a prompt keeps.

One file a method, behind `registry`; the maths that several methods share is in `window_attention`
and `select`. Running the model, moving KV and planning a request belong elsewhere.
"""
