"""What page selection costs in answers: every page policy against dense decode on the same KV."""
