// Between the host and the device: points, small results, and streams that are not torch's.
#include <map>
#include <memory>
#include <mutex>

#include "bindings/checks.h"
#include "transfer/transfer.h"

namespace millisecond {
namespace {

// On the host; the wrapper checks that the memory is pinned.
void check_on_host(const Tensor& tensor, const char* name, at::ScalarType dtype, int64_t dims) {
  TORCH_CHECK(tensor.is_cpu(), name, " must be on the host, is on ", tensor.device());
  TORCH_CHECK(tensor.scalar_type() == dtype && tensor.dim() == dims && tensor.is_contiguous(), name,
              " must be contiguous ", dtype, " of ", dims, " dimensions, is ", tensor.scalar_type(),
              " with shape ", tensor.sizes(), " and strides ", tensor.strides());
}

int* staged_numbers(const Tensor& staged) {
  check_on_host(staged, "staged", at::kInt, 1);
  TORCH_CHECK(staged.size(0) == 2, "staged must be [2], has shape ", staged.sizes());
  return staged.data_ptr<int>();
}

// A copy that has begun. It owns its tensors: whatever happens to the caller, no thread reads memory that is gone.
struct Begun {
  Begun(std::vector<Tensor> used, const Pinned& to, const std::vector<Cloud>& clouds)
      : tensors(std::move(used)), staging(to, clouds) {}

  const std::vector<Tensor> tensors;
  const Staging staging;  // ends before they do
};

// Keeps a copy that has begun until the next call with the same counter, which ends it.
void keep(const void* counter, std::unique_ptr<Begun> next) {
  static std::mutex mutex;
  static auto& begun = *new std::map<const void*, std::unique_ptr<Begun>>;
  std::unique_ptr<Begun> before;  // it ends when the lock is free
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto place = begun.find(counter); place != begun.end()) {
    before = std::move(place->second);
    begun.erase(place);
  }
  if (next) begun.emplace(counter, std::move(next));
}

void stage_points(const std::vector<Tensor>& clouds, const Tensor& points, const Tensor& staged, bool finish) {
  check_on_host(points, "points", at::kFloat, 2);
  std::atomic<int>* const count = reinterpret_cast<std::atomic<int>*>(staged_numbers(staged));
  keep(count, nullptr);
  int64_t total = *count;
  const int64_t point_bytes = points.size(1) * int64_t(sizeof(float));
  std::vector<Tensor> used = {points, staged};
  std::vector<Cloud> parts;
  for (const Tensor& cloud : clouds) {
    TORCH_CHECK(cloud.is_cpu() && cloud.scalar_type() == at::kFloat && cloud.dim() == 2,
                "cloud must be [P, C] float32 on the host, is ", cloud.sizes(), " ", cloud.scalar_type(), " on ",
                cloud.device());
    TORCH_CHECK(cloud.size(1) == points.size(1), "cloud must have ", points.size(1), " columns, has shape ",
                cloud.sizes());
    used.push_back(cloud.resolve_neg().contiguous());
    parts.push_back({{used.back().data_ptr(), point_bytes, nullptr}, cloud.size(0)});
    total += cloud.size(0);
  }
  TORCH_CHECK(total <= points.size(0), "points has room for ", points.size(0), ", the clouds need ", total);
  auto begun = std::make_unique<Begun>(std::move(used),
                                       Pinned{static_cast<char*>(points.data_ptr()), point_bytes, count}, parts);
  if (!finish) keep(count, std::move(begun));  // else it ends here
}

std::tuple<Tensor, Tensor, Tensor> load_points_of(const Tensor& points, const Tensor& offsets,
                                                  const Tensor& workspace, const std::optional<Tensor>& staged,
                                                  const std::optional<Tensor>& moves, at::ArrayRef<double> scales,
                                                  double few) {
  if (points.is_cuda()) {
    check_tensor(points, "points", at::kFloat, 2);
    check_tensor(offsets, "offsets", at::kInt, 1);
    check_same_device(points, "points", workspace, "workspace");
    check_same_device(offsets, "offsets", workspace, "workspace");
  } else {
    check_on_host(points, "points", at::kFloat, 2);
    check_on_host(offsets, "offsets", at::kInt, 1);
  }
  check_tensor(workspace, "workspace", at::kInt, 1);
  check_aligned(points, "points");
  const int64_t capacity = points.size(0), channels = points.size(1), batch = offsets.size(0) - 1;
  TORCH_CHECK(channels >= 4, "points must be [P, 4 or more], has shape ", points.sizes());
  TORCH_CHECK(points.numel() < INT32_MAX / 2, "points: ", points.sizes(), " is too large");
  TORCH_CHECK(batch >= 1 && batch <= LOAD_LIMIT, "offsets must be [B + 1] of 1 to ", LOAD_LIMIT,
              " frames, has shape ", offsets.sizes());
  if (moves) {
    check_on_host(*moves, "moves", at::kFloat, 2);
    TORCH_CHECK(moves->size(0) == batch && moves->size(1) == MOVE_NUMBERS, "moves must be [", batch, ", ",
                MOVE_NUMBERS, "], has shape ", moves->sizes());
  }
  TORCH_CHECK(scales.size() == INTENSITY_SCALES, "scales must hold ", INTENSITY_SCALES, " numbers, is ", scales);
  const int words = load_words(static_cast<int>(batch));
  TORCH_CHECK(workspace.numel() >= words, "workspace must have ", words, " elements, has ", workspace.numel());
  const c10::cuda::CUDAGuard guard(workspace.device());
  Tensor loaded = at::empty({capacity, channels}, workspace.options().dtype(at::kFloat));
  Tensor starts = at::empty({batch + 1}, workspace.options()), late = at::empty({1}, workspace.options());
  LoadJob job = {static_cast<int>(batch),
                 static_cast<int>(capacity),
                 static_cast<int>(channels),
                 points.data_ptr<float>(),
                 offsets.data_ptr<int>(),
                 staged ? staged_numbers(*staged) : nullptr,
                 loaded.data_ptr<float>(),
                 starts.data_ptr<int>(),
                 late.data_ptr<int>(),
                 reinterpret_cast<uint32_t*>(workspace.data_ptr<int>()),
                 {},
                 few,
                 moves ? moves->data_ptr<float>() : nullptr};
  for (int s = 0; s < INTENSITY_SCALES; ++s) job.scales[s] = static_cast<float>(scales[s]);
  check(load_points(job, stream()), "load_points");
  return {loaded, starts, late};
}

// Parts of 4-byte words into `out`, which they fill exactly; the wrapper checks that `out` is pinned.
void collect_into(const std::vector<Tensor>& parts, const Tensor& out) {
  check_on_host(out, "out", at::kInt, 1);
  TORCH_CHECK(!parts.empty() && parts.size() <= MOST_PARTS, "parts must be 1 to ", MOST_PARTS, ", are ",
              parts.size());
  CollectJob job = {static_cast<int>(parts.size()), {}, {}, reinterpret_cast<uint32_t*>(out.data_ptr<int>())};
  int64_t words = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    check_tensor(parts[i], "part", parts[i].scalar_type(), -1);
    check_same_device(parts[i], "part", parts[0], "the first part");
    const int64_t bytes = parts[i].numel() * int64_t(parts[i].element_size());
    TORCH_CHECK(bytes % 4 == 0 && reinterpret_cast<uintptr_t>(parts[i].data_ptr()) % 4 == 0, "part ", i,
                " must be of 4-byte words, has ", bytes, " bytes");
    words += bytes / 4;
    TORCH_CHECK(words <= out.numel(), "out has ", out.numel(), " words, the parts have more");
    job.part[i] = static_cast<const uint32_t*>(parts[i].data_ptr());
    job.end[i] = static_cast<int>(words);
  }
  TORCH_CHECK(words == out.numel(), "out has ", out.numel(), " words, the parts have ", words);
  const c10::cuda::CUDAGuard guard(parts[0].device());
  check(collect(job, stream()), "collect");
}

// torch gives the same 32 streams per device to all who ask. This stream has one owner; it is never destroyed.
int64_t own_stream(int64_t device, int64_t priority) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, static_cast<int>(priority)), "own_stream");
  return reinterpret_cast<int64_t>(stream);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  // points [P, C], offsets [B + 1], staged [2], moves [B, 13] in pinned memory, or points, offsets on the device;
  // scales rise
  m.def(
      "load_points(Tensor points, Tensor offsets, Tensor(a!) workspace, Tensor? staged, Tensor? moves, "
      "float[] scales, float few) -> (Tensor points, Tensor offsets, Tensor late)",
      on_cuda(load_points_of));
  // all on the host: clouds of [P_i, C] behind the points that are there
  m.def("stage_points(Tensor[] clouds, Tensor(a!) points, Tensor(b!) staged, bool finish=True) -> ()",
        torch::dispatch(c10::kCPU, stage_points));
  // out: int32 in pinned memory
  m.def("collect(Tensor[] parts, Tensor(a!) out) -> ()", on_cuda(collect_into));
  m.def("own_stream(int device, int priority) -> int", own_stream);
}

}  // namespace millisecond
