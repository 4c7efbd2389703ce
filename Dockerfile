# The detector in a container, for a CPU or for NVIDIA GPUs, as a user without rights. docs/install.md shows its use.
#   docker build -t millisecond .
#   docker build -t millisecond:gpu --target gpu .
ARG PYTHON=python:3.12-slim-bookworm

FROM ${PYTHON} AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM ${PYTHON} AS base
# it compiles the kernels at first use, for the processor that is there
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
# beside what the detector needs: progress bars, pictures from above, tracks; 3-D pictures also need open3d
ARG PACKAGES="tqdm pillow matplotlib scipy"
COPY constraints.txt /
COPY --from=wheel /wheel /wheel
# hadolint ignore=SC2086
RUN pip install --no-cache-dir -c /constraints.txt numpy pyyaml safetensors ninja ${PACKAGES} \
    && pip install --no-cache-dir --no-deps /wheel/*.whl \
    && useradd --create-home --uid 1000 millisecond \
    && install -d -m 1777 /var/cache/millisecond
# any user may write there: docker run --user
ENV TORCH_EXTENSIONS_DIR=/var/cache/millisecond
VOLUME /var/cache/millisecond
WORKDIR /home/millisecond
ENTRYPOINT ["millisecond"]
CMD ["--help"]

FROM base AS gpu
# nvcc comes from the packages beside torch; torch links to lib64/libcudart.so
RUN pip install --no-cache-dir -c /constraints.txt torch "nvidia-cuda-nvcc==13.0.*" "nvidia-cuda-crt==13.0.*" \
        "nvidia-nvvm==13.0.*" "nvidia-cuda-cccl==13.0.*" "nvidia-cuda-runtime==13.0.*" \
    && ln -s "$(python -c 'import nvidia; print(nvidia.__path__[0])')/cu13" /usr/local/cuda \
    && ln -s lib /usr/local/cuda/lib64 \
    && ln -s libcudart.so.13 /usr/local/cuda/lib/libcudart.so
ENV CUDA_HOME=/usr/local/cuda NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000

FROM base AS cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir -c /constraints.txt --index-url ${TORCH_INDEX} torch
USER 1000
