#!/bin/bash
# try_wheel.sh WHEEL CHECKOUT: installs the wheel as on a machine without a compiler, times the first detection, runs tests of
# kernels against the installed package, and at last hides the wheel's bindings, so that g++ alone compiles them.
# PYTHON names the Python that has torch (default python3).
set -u
wheel=$(realpath "$1") checkout=$(realpath "$2") python=${PYTHON:-python3}
work=$(mktemp -d)
unset CUDA_HOME CUDA_PATH CUDACXX TORCH_CUDA_ARCH_LIST PYTHONPATH MAKEFLAGS
export TORCH_EXTENSIONS_DIR=$work/cache HOME=$work

# no folder that has nvcc is on PATH; compilers in front of it say that they were called, and fail
clean=
IFS=: read -ra folders <<<"$PATH"
for folder in "${folders[@]}"; do [ -e "$folder/nvcc" ] || clean=$clean:$folder; done
mkdir "$work/none" "$work/home"
for tool in nvcc c++ g++ gcc cc ninja; do
  printf '#!/bin/sh\necho "$0 $*" >> %s\nexit 1\n' "$work/called" > "$work/none/$tool"
  chmod +x "$work/none/$tool"
done
export PATH=$work/none$clean

cat > "$work/first.py" <<'END'
import sys
import time

begin = time.monotonic()
import numpy
import torch

loaded = time.monotonic()
from millisecond import Detector

generator = numpy.random.default_rng(0)
cloud = generator.uniform((0, -20, -2, 0), (60, 20, 0.5, 1), (60000, 4)).astype("f4")
detector = Detector()
opened = time.monotonic()
boxes = detector(cloud)
torch.cuda.synchronize()
done = time.monotonic()
print(f"torch {loaded - begin:.1f} s, detector {opened - loaded:.1f} s, first scan {done - opened:.1f} s, "
      f"{len(boxes.scores)} boxes, from {sys.modules['millisecond'].__file__}")
END

echo "== install, then the first detection"
begin=$(date +%s.%N)
"$python" -m pip install -q --no-index --no-deps --target "$work/site" "$wheel" || exit 1
installed=$(date +%s.%N)
export PYTHONPATH=$work/site
cd "$work/home" || exit 1
"$python" "$work/first.py" || failed=1
done=$(date +%s.%N)
echo "$begin $installed $done" | awk '{printf "installed in %.1f s; first detection %.1f s after the start, %.1f s after the installation\n", $2-$1, $3-$1, $3-$2}'
"$python" "$work/first.py" || failed=1
echo "compilers called: $(cat "$work/called" 2>/dev/null | wc -l)"
[ -e "$work/called" ] && cut -c1-200 "$work/called"
ls -d "$work"/cache/* 2>/dev/null

echo "== python -m millisecond.ops.check"
"$python" -m millisecond.ops.check || failed=1

echo "== tests of kernels against the installed package"
mkdir "$work/trial"
cp -r "$checkout/tests" "$checkout/pyproject.toml" "$work/trial/"  # no folder millisecond beside them
cd "$work/trial" || exit 1
"$python" -c 'import millisecond.ops.library as l; print(l.__file__); print(l.library_path(l.read_sources()))'
"$python" -m pytest -q -m gpu -p no:cacheprovider tests/ops/test_index_gpu.py tests/ops/test_voxelize_gpu.py \
  tests/ops/test_sparse_conv_gpu.py tests/ops/test_nms_gpu.py tests/ops/test_max_pool_gpu.py \
  tests/ops/test_bev_cells_gpu.py tests/ops/test_window_gpu.py tests/ops/test_streams_gpu.py 2>&1 | tail -15
[ "${PIPESTATUS[0]}" = 0 ] || failed=1

echo "== a torch that the wheel has no bindings for: with no compiler, then with g++ and ninja alone"
mv "$work"/site/millisecond/ops/prebuilt/bindings-torch*.so "$work/"
"$python" -m millisecond.ops.check && failed=1
export PATH=${clean#:}
"$python" -m millisecond.ops.check || failed=1
"$python" "$work/first.py" || failed=1
rm -rf "$work"
echo "failed: ${failed:-0}"
exit "${failed:-0}"
