// Blocks of convolution, batch normalisation and ReLU, for training, and their gradients. Autograd gets them from
// here and not from Python, for the host's sake.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <numeric>

#include "bindings/branch.h"
#include "bindings/conv.h"
#include "bindings/operators.h"

namespace millisecond {
namespace {

constexpr int64_t LARGE = 1 << 20;  // bytes: memory that is allocated when it is due, and not kept

// A list of counts is empty where all rows of all tables count, one of orders where no table has one.
template <typename List>
bool one_or_none(const List& tensors, size_t blocks) {
  return tensors.empty() || tensors.size() == blocks;
}

std::optional<Tensor> of_block(at::TensorList counts, size_t block) {
  return counts.empty() ? std::nullopt : std::optional<Tensor>(counts[block]);
}

int64_t* counter_of(at::TensorList batches, size_t block, const Tensor& features) {
  if (batches.empty()) return nullptr;
  const Tensor& count = batches[block];
  check_tensor(count, "num_batches_tracked", at::kLong, 0);
  check_same_device(count, "num_batches_tracked", features, "features");
  return count.data_ptr<int64_t>();
}

// Packs the weights of the blocks from `first` on in one launch, for the host's sake. Null for a block whose
// weight needs no packing, is packed later, or will be rejected.
std::vector<const void*> packed_weights(const Tensor& features, at::TensorList weights, bool transposed,
                                        size_t first, Scalar type, bool tf32, Scratch& scratch) {
  std::vector<const void*> packed(weights.size());
  std::vector<Weight> taken;
  std::vector<size_t> blocks;
  for (size_t i = first; i < weights.size(); ++i) {
    const Tensor& data = weights[i];
    if (data.device() != features.device() || data.dim() < 3) continue;
    const Scalar from = scalar_of(data, "weight");
    if (from != type && from != Scalar::float32) continue;
    const auto [volume, c_in, c_out] = shape_of(data, transposed);
    taken.push_back({data.data_ptr(), from, strides_of(data, transposed), static_cast<int32_t>(volume),
                     static_cast<int32_t>(c_in), static_cast<int32_t>(c_out), nullptr});
    blocks.push_back(i);
  }
  const auto count = static_cast<int>(taken.size());
  check(pack_together(type, tf32, taken.data(), count, std::ref(scratch), stream()), "pack");
  for (size_t i = 0; i < taken.size(); ++i) packed[blocks[i]] = taken[i].packed;
  return packed;
}

// Training blocks one feeding the next, in one call for the host's sake. Returns outs and sums of all blocks, one
// kind after the other, and their means and inverse deviations, [2, channels of all blocks]. Moves the running
// statistics, and the numbers of batches where there are any. The last block adds the residual before its ReLU.
std::vector<Tensor> conv_blocks(const Tensor& features, at::TensorList weights, at::TensorList scales,
                                at::TensorList shifts, at::TensorList running_means, at::TensorList running_vars,
                                at::TensorList batches, at::TensorList neighbours, at::TensorList counts,
                                const OptionalTensors& orders, double momentum, double eps, bool tf32,
                                const std::optional<Tensor>& residual) {
  const size_t blocks = weights.size();
  TORCH_CHECK(blocks > 0, "weights must hold one tensor at least");
  TORCH_CHECK(scales.size() == blocks && shifts.size() == blocks && running_means.size() == blocks &&
                  running_vars.size() == blocks && one_or_none(batches, blocks) && neighbours.size() == blocks &&
                  one_or_none(counts, blocks) && one_or_none(orders, blocks),
              "every list must have one tensor for each of ", blocks, " weights");
  const c10::cuda::CUDAGuard guard(features.device());
  const Scalar type = scalar_of(features, "features");
  std::vector<Tensor> saved(2 * blocks + 1);
  int64_t channels = 0;
  for (const Tensor& scale : scales) channels += scale.numel();
  Tensor& statistics = saved[2 * blocks] = empty({2, channels}, scales[0].options());
  float* mean = statistics.data_ptr<float>();
  Scratch packs(features);
  SharedScratch scratch(features);
  const std::vector<const void*> packed = packed_weights(features, weights, false, 0, type, tf32, packs);
  for (size_t i = 0; i < blocks; ++i) {
    const Tensor& x = i == 0 ? features : saved[i - 1];
    check_tensor(x, "features", features.scalar_type(), 2);
    check_aligned(x, "features");
    const OffsetTable table = table_of(neighbours[i], of_block(counts, i), false, x, order_of(orders, i));
    Weight weight = weight_of(weights[i], false, table, x);
    weight.packed = packed[i];
    TORCH_CHECK(table.rows > 1, "neighbours must have 2 or more rows for batch statistics, has ", table.rows);
    check_channels(scales[i], "scale", weight.c_out, x);
    check_channels(shifts[i], "shift", weight.c_out, x);
    check_channels(running_means[i], "running_mean", weight.c_out, x);
    check_channels(running_vars[i], "running_var", weight.c_out, x);
    Tensor sums = empty({table.rows, weight.c_out}, x.options()), out = empty(sums.sizes(), x.options());
    check(block_forward(
              type, tf32,
              {weight, x.data_ptr(), i + 1 == blocks ? residual_of(residual, out) : nullptr, sums.data_ptr(),
               out.data_ptr(), table, scales[i].data_ptr<float>(), shifts[i].data_ptr<float>(),
               running_means[i].data_ptr<float>(), running_vars[i].data_ptr<float>(), counter_of(batches, i, x),
               mean, mean + channels, momentum, eps},
              std::ref(scratch), stream()),
          "conv_blocks");
    scratch.next_call(LARGE);
    saved[i] = out;
    saved[blocks + i] = sums;
    mean += weight.c_out;
  }
  return saved;
}

// What a block has kept, and the gradient of its result.
void check_kept(const Tensor& gradient, const Tensor& sums, const OffsetTable& table, int64_t channels,
                const Tensor& features) {
  for (const Tensor& tensor : {gradient, sums}) {
    check_tensor(tensor, "gradient and sums", features.scalar_type(), 2);
    TORCH_CHECK(tensor.size(0) == table.rows && tensor.size(1) == channels, "gradient and sums must be of shape [",
                table.rows, ", ", channels, "], are ", gradient.sizes(), " and ", sums.sizes());
    check_same_device(tensor, "gradient or sums", features, "features");
    check_aligned(tensor, "gradient and sums");
  }
}

constexpr int WIDE = 128;  // channels

// Plans of the gradients of all weights, made on the branch.
std::vector<WeightGradientPlan> plans_of(const Tensor& features, at::TensorList weights, at::TensorList saved,
                                         at::TensorList neighbours, at::TensorList counts, bool tf32,
                                         Scratch& scratch, const Branch& branch) {
  std::vector<WeightGradient> wanted;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Tensor& x = i == 0 ? features : saved[i - 1];
    check_tensor(x, "features", features.scalar_type(), 2);
    const OffsetTable table = table_of(neighbours[i], of_block(counts, i), false, x);
    const Weight weight = weight_of(weights[i], false, table, x);
    wanted.push_back({nullptr, nullptr, nullptr, {}, table, x.size(0), weight.c_in, weight.c_out});
  }
  std::vector<WeightGradientPlan> plans(wanted.size());
  check(plan_weight_gradients(scalar_of(features, "features"), tf32, wanted.data(),
                              static_cast<int>(wanted.size()), plans.data(), std::ref(scratch), branch.stream),
        "conv_blocks_backward");
  return plans;
}

// Tensors in one allocation, for the host's sake: an allocation takes it about half as long as a launch. The
// memory goes back when all of them are gone.
class Pieces {
 public:
  // Bytes for a tensor of so many.
  static int64_t room(int64_t bytes) { return divide_up(bytes, ALIGNMENT) * ALIGNMENT; }

  // bytes: the room of all.
  Pieces(int64_t bytes, const Tensor& like) : whole_(empty({bytes}, like.options().dtype(at::kByte))) {}

  // The next one, dense.
  Tensor take(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
    Tensor piece = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(whole_.storage()), whole_.key_set(),
                                                            c10::scalarTypeToTypeMeta(type));
    c10::TensorImpl& impl = *piece.unsafeGetTensorImpl();
    impl.set_sizes_and_strides(sizes, strides);
    impl.set_storage_offset(at_ / impl.itemsize());
    at_ += room(impl.numel() * impl.itemsize());
    TORCH_INTERNAL_ASSERT(at_ <= whole_.numel());
    return piece;
  }

 private:
  static constexpr int64_t ALIGNMENT = 256;
  Tensor whole_;
  int64_t at_ = 0;
};

// Strides of the gradient of a weight, so that autograd takes it as it is: the strides of a [C_out, V, C_in] where
// a weight [V, C_in, C_out] has them, else contiguous ones.
at::DimVector gradient_strides(const Tensor& weight) {
  if (weight.dim() == 3) {
    const at::DimVector outputs_first = {weight.size(1), 1, weight.size(0) * weight.size(1)};
    if (weight.strides() == at::IntArrayRef(outputs_first)) return outputs_first;
  }
  return c10::contiguous_strides(weight.sizes());
}

int64_t gradient_room(const Tensor& parameter) { return Pieces::room(parameter.numel() * sizeof(float)); }

// Gradients of weights, but the large ones, of scales and of shifts of all blocks, one kind after the other behind
// a place for the gradient of the features; in one allocation.
std::vector<Tensor> joint_gradients(at::TensorList weights, at::TensorList scales) {
  const size_t blocks = weights.size();
  int64_t room = 0;
  for (size_t i = 0; i < blocks; ++i) {
    const int64_t of_weight = gradient_room(weights[i]);
    room += 2 * gradient_room(scales[i]) + (of_weight > LARGE ? 0 : of_weight);
  }
  Pieces pieces(room, scales[0]);
  std::vector<Tensor> gradients(1 + 3 * blocks);
  for (size_t i = 0; i < blocks; ++i) {
    if (gradient_room(weights[i]) <= LARGE)
      gradients[1 + i] = pieces.take(weights[i].sizes(), gradient_strides(weights[i]), at::kFloat);
    for (size_t kind : {1, 2})
      gradients[1 + kind * blocks + i] = pieces.take(scales[i].sizes(), scales[i].strides(), at::kFloat);
  }
  return gradients;
}

// Their gradients: of the features (empty unless wanted), then of weights, scales and shifts of all blocks, then
// of the residual if there was one. overwrite: the sums among saved are not needed any more, their gradients may
// take their place. joint: gradients of small parameters share an allocation, which an operator's results may not.
std::vector<Tensor> blocks_backward(const Tensor& gradient, const Tensor& features, at::TensorList weights,
                                    at::TensorList scales, at::TensorList shifts, at::TensorList saved,
                                    at::TensorList neighbours, at::TensorList counts,
                                    at::TensorList back_neighbours, at::TensorList back_counts,
                                    const OptionalTensors& back_orders, at::IntArrayRef back_flipped, double eps,
                                    bool wants_features, bool tf32, bool overwrite, bool residual, bool joint) {
  const size_t blocks = weights.size();
  TORCH_CHECK(scales.size() == blocks && shifts.size() == blocks && saved.size() == 2 * blocks + 1 &&
                  neighbours.size() == blocks && back_neighbours.size() == blocks &&
                  back_flipped.size() == blocks && one_or_none(counts, blocks) &&
                  one_or_none(back_counts, blocks) && one_or_none(back_orders, blocks),
              "every list must have one tensor for each of ", blocks, " weights, saved two and one more");
  const c10::cuda::CUDAGuard guard(features.device());
  const Scalar type = scalar_of(features, "features");
  std::vector<Tensor> gradients = joint ? joint_gradients(weights, scales) : std::vector<Tensor>(1 + 3 * blocks);
  if (residual) gradients.emplace_back();
  // autograd may hand over an expanded gradient or a slice of a larger one
  Tensor of_out = gradient.contiguous();
  if (reinterpret_cast<uintptr_t>(of_out.data_ptr()) % 16 != 0) of_out = of_out.clone();
  Scratch ahead(features);
  std::vector<Tensor> of_sums(blocks);                // the branch reads them until it is joined
  SharedScratch scratch(features), shared(features);  // the latter of the branch
  const Tensor& statistics = saved[2 * blocks];
  int64_t channels = 0;
  for (const Tensor& scale : scales) channels += scale.numel();
  check_tensor(statistics, "statistics", at::kFloat, 2);
  check_same_device(statistics, "statistics", features, "features");
  TORCH_CHECK(statistics.size(0) == 2 && statistics.size(1) == channels, "statistics must be [2, ", channels,
              "], has shape ", statistics.sizes());
  const float* mean = statistics.data_ptr<float>() + channels;  // behind the last block's mean
  const ForkedStream fork(features.device());
  const std::vector<WeightGradientPlan> plans =
      plans_of(features, weights, saved, neighbours, counts, tf32, ahead, fork.branch());
  const size_t first = wants_features ? 0 : 1;  // else the first block's weight meets no gradient
  const std::vector<const void*> packed = packed_weights(features, weights, true, first, type, tf32, ahead);
  for (size_t i = blocks; i-- > 0;) {
    const Tensor& x = i == 0 ? features : saved[i - 1];
    check_tensor(x, "features", features.scalar_type(), 2);
    check_aligned(x, "features");
    const OffsetTable table = table_of(neighbours[i], of_block(counts, i), false, x);
    Weight weight = weight_of(weights[i], false, table, x);
    const Tensor& sums = saved[blocks + i];
    mean -= weight.c_out;
    check_kept(of_out, sums, table, weight.c_out, x);
    check_channels(scales[i], "scale", weight.c_out, x);
    check_channels(shifts[i], "shift", weight.c_out, x);
    const bool wanted = i > 0 || wants_features;
    OffsetTable back = {};
    if (wanted) {
      back = table_of(back_neighbours[i], of_block(back_counts, i), back_flipped[i] != 0, x,
                      order_of(back_orders, i));
      TORCH_CHECK(back.rows == x.size(0) && back.volume == table.volume, "back_neighbours must be [", table.volume,
                  ", ", x.size(0), "], has shape ", back_neighbours[i].sizes());
    }
    weight.packed = packed[i];
    // the gradient of another block's features is ours to overwrite
    of_sums[i] = overwrite ? sums : (i + 1 == blocks ? empty(sums.sizes(), sums.options()) : of_out);
    // a wide layer's weight gradient fills the device: nothing is lost where the features' waits for it
    const bool in_place = overwrite && i > 0 && std::min(weight.c_in, weight.c_out) >= WIDE;
    Tensor of_features = !wanted ? empty({0}, x.options()) : (in_place ? x : empty(x.sizes(), x.options()));
    Tensor &of_weight = gradients[1 + i], &of_scale = gradients[1 + blocks + i],
           &of_shift = gradients[1 + 2 * blocks + i];
    if (!of_weight.defined())
      of_weight = at::empty_strided(weights[i].sizes(), gradient_strides(weights[i]), scales[i].options());
    for (Tensor* parameter : {&of_scale, &of_shift})
      if (!parameter->defined()) *parameter = empty(scales[i].sizes(), scales[i].options());
    shared.next_call();
    ResultGradient of_result = {of_out.data_ptr()};
    if (residual && i + 1 == blocks) {
      check_kept(of_out, saved[i], table, weight.c_out, x);
      gradients.back() = empty(sums.sizes(), sums.options());
      of_result.out = saved[i].data_ptr();
      of_result.of_residual = gradients.back().data_ptr();
    }
    check(block_backward(
              type, tf32,
              {weight, of_result, sums.data_ptr(), x.data_ptr(), x.size(0), table, back,
               scales[i].data_ptr<float>(), shifts[i].data_ptr<float>(), mean, mean + channels, eps,
               of_sums[i].data_ptr(), wanted ? of_features.data_ptr() : nullptr, of_weight.data_ptr<float>(),
               strides_of(of_weight, false), plans[i], of_scale.data_ptr<float>(), of_shift.data_ptr<float>()},
              std::ref(scratch), stream(), fork.branch(std::ref(shared))),
          "conv_blocks_backward");
    scratch.next_call(LARGE);
    of_out = of_features;
  }
  gradients[0] = of_out;
  return gradients;
}

std::vector<Tensor> conv_blocks_backward(const Tensor& gradient, const Tensor& features, at::TensorList weights,
                                         at::TensorList scales, at::TensorList shifts, at::TensorList saved,
                                         at::TensorList neighbours, at::TensorList counts,
                                         at::TensorList back_neighbours, at::TensorList back_counts,
                                         const OptionalTensors& back_orders, at::IntArrayRef back_flipped,
                                         double eps, bool wants_features, bool tf32, bool overwrite,
                                         bool residual) {
  return blocks_backward(gradient, features, weights, scales, shifts, saved, neighbours, counts, back_neighbours,
                         back_counts, back_orders, back_flipped, eps, wants_features, tf32, overwrite, residual,
                         false);
}

// ---- with autograd ---------------------------------------------------------------------------------------------

using Tensors = std::vector<Tensor>;

// A bias before a normalisation moves its running mean alone: the rows' own mean takes it away again.
void move_means(at::TensorList running_means, at::TensorList biases, double momentum, const Tensor& features) {
  if (biases.empty()) return;
  TORCH_CHECK(biases.size() == running_means.size(), "biases must be none or ", running_means.size(), ", are ",
              biases.size());
  for (size_t i = 0; i < biases.size(); ++i) check_channels(biases[i], "bias", running_means[i].numel(), features);
  at::_foreach_add_(running_means, biases, momentum);
}

// Zeros for each of the scales, in one allocation.
Tensors zeros_like(at::TensorList scales) {
  at::DimVector sizes;
  for (const Tensor& scale : scales) sizes.push_back(scale.numel());
  const int64_t channels = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  return at::zeros({channels}, scales[0].options()).split_with_sizes(sizes);
}

// What has no gradient.
struct Rest : torch::CustomClassHolder {
  Tensors running_means, running_vars, batches, neighbours, counts, back_neighbours, back_counts;
  OptionalTensors orders, back_orders;
  std::vector<int64_t> back_flipped;
  double momentum, eps;
  bool tf32;
  bool residual;  // whether the last block adds one
};

Tensors all_readable(at::TensorList weights) {
  Tensors out;
  for (const Tensor& weight : weights) out.push_back(readable(weight));
  return out;
}

struct Blocks : torch::autograd::Function<Blocks> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& features, at::TensorList weights,
                        at::TensorList scales, at::TensorList shifts, at::TensorList biases,
                        const std::optional<Tensor>& residual, const c10::intrusive_ptr<Rest>& rest) {
    static const auto blocks = operator_of<decltype(conv_blocks)>("millisecond::conv_blocks");
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensors saved = blocks.call(features, all_readable(weights), scales, shifts, rest->running_means,
                                      rest->running_vars, rest->batches, rest->neighbours, rest->counts,
                                      rest->orders, rest->momentum, rest->eps, rest->tf32, residual);
    move_means(rest->running_means, biases, rest->momentum, features);
    Tensors kept = {features};
    for (const at::TensorList list : {weights, scales, shifts, at::TensorList(saved)})
      kept.insert(kept.end(), list.begin(), list.end());
    context->save_for_backward(std::move(kept));
    context->saved_data["rest"] = c10::IValue::make_capsule(rest);
    context->saved_data["biased"] = !biases.empty();
    return saved[weights.size() - 1];
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "conv_blocks: its gradient cannot be differentiated, leave out create_graph");
    static const auto backward = operator_of<decltype(conv_blocks_backward)>("millisecond::conv_blocks_backward");
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensors kept = context->get_saved_variables();
    const auto rest = c10::static_intrusive_pointer_cast<Rest>(context->saved_data["rest"].toCapsule());
    const size_t blocks = (kept.size() - 2) / 5;
    const auto kind = [&](size_t i) { return at::TensorList(kept).slice(1 + i * blocks, blocks); };
    const bool wants_features = context->needs_input_grad(0);
    const bool overwrite = !torch::autograd::get_current_graph_task_keep_graph();
    const auto call = [&](const auto& function, auto... more) {
      return function(gradients[0], kept[0], all_readable(kind(0)), kind(1), kind(2),
                      at::TensorList(kept).slice(1 + 3 * blocks), rest->neighbours, rest->counts,
                      rest->back_neighbours, rest->back_counts, rest->back_orders, rest->back_flipped, rest->eps,
                      wants_features, rest->tf32, overwrite, rest->residual, more...);
    };
    const auto by_name = [&](auto&&... arguments) { return backward.call(arguments...); };
    Tensors found = is_watched(gradients[0]) ? call(by_name) : call(blocks_backward, true);
    if (!wants_features) found[0] = Tensor();
    Tensor of_residual;
    if (rest->residual) {
      of_residual = std::move(found.back());
      found.pop_back();
    }
    if (context->saved_data["biased"].toBool())
      for (Tensor& zeros : zeros_like(kind(1))) found.push_back(std::move(zeros));
    found.push_back(rest->residual && context->needs_input_grad(found.size()) ? of_residual : Tensor());
    found.emplace_back();  // of the rest
    return found;
  }
};

Tensor train_blocks(const Tensor& features, at::TensorList weights, at::TensorList scales, at::TensorList shifts,
                    at::TensorList running_means, at::TensorList running_vars, at::TensorList batches,
                    at::TensorList neighbours, at::TensorList counts, const OptionalTensors& orders,
                    at::TensorList back_neighbours, at::TensorList back_counts, const OptionalTensors& back_orders,
                    at::IntArrayRef back_flipped, double momentum, double eps, bool tf32, at::TensorList biases,
                    const std::optional<Tensor>& residual) {
  const auto rest = c10::make_intrusive<Rest>();
  rest->running_means = running_means.vec(), rest->running_vars = running_vars.vec();
  rest->batches = batches.vec(), rest->neighbours = neighbours.vec(), rest->counts = counts.vec();
  rest->back_neighbours = back_neighbours.vec(), rest->back_counts = back_counts.vec();
  rest->orders = orders, rest->back_orders = back_orders, rest->back_flipped = back_flipped.vec();
  rest->momentum = momentum, rest->eps = eps, rest->tf32 = tf32, rest->residual = residual.has_value();
  return Blocks::apply(features, weights, scales, shifts, biases, residual, rest);
}

// In inference mode.
Tensor train_blocks_without_gradient(const Tensor& features, at::TensorList weights, at::TensorList scales,
                                     at::TensorList shifts, at::TensorList running_means,
                                     at::TensorList running_vars, at::TensorList batches,
                                     at::TensorList neighbours, at::TensorList counts,
                                     const OptionalTensors& orders, at::TensorList, at::TensorList,
                                     const OptionalTensors&, at::IntArrayRef, double momentum, double eps,
                                     bool tf32, at::TensorList biases, const std::optional<Tensor>& residual) {
  const Tensors saved = conv_blocks(features, all_readable(weights), scales, shifts, running_means, running_vars,
                                    batches, neighbours, counts, orders, momentum, eps, tf32, residual);
  move_means(running_means, biases, momentum, features);
  return saved[weights.size() - 1];
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(millisecond, m) {
  m.def(
      "conv_blocks(Tensor features, Tensor[] weights, Tensor[] scales, Tensor[] shifts, Tensor(a!)[] "
      "running_means, Tensor(b!)[] running_vars, Tensor(c!)[] batches, Tensor[] neighbours, Tensor[] counts, "
      "Tensor?[] orders, float momentum, float eps, "
      "bool tf32=False, Tensor? residual=None) -> Tensor[]",
      on_cuda(conv_blocks));
  m.def(
      "conv_blocks_backward(Tensor gradient, Tensor features, Tensor[] weights, Tensor[] scales, Tensor[] "
      "shifts, Tensor(a!)[] saved, Tensor[] neighbours, Tensor[] counts, Tensor[] back_neighbours, Tensor[] "
      "back_counts, Tensor?[] back_orders, int[] back_flipped, float eps, bool wants_features, bool tf32=False, "
      "bool overwrite=False, bool residual=False) -> Tensor[]",
      on_cuda(conv_blocks_backward));
  m.def(
      "train_blocks(Tensor features, Tensor[] weights, Tensor[] scales, Tensor[] shifts, Tensor(a!)[] "
      "running_means, Tensor(b!)[] running_vars, Tensor(c!)[] batches, Tensor[] neighbours, Tensor[] counts, "
      "Tensor?[] orders, Tensor[] "
      "back_neighbours, Tensor[] back_counts, Tensor?[] back_orders, int[] back_flipped, float momentum, float "
      "eps, "
      "bool tf32, Tensor[] biases, Tensor? residual) -> Tensor",
      on_cuda(train_blocks_without_gradient));
}

TORCH_LIBRARY_IMPL(millisecond, AutogradCUDA, m) { m.impl("train_blocks", train_blocks); }

}  // namespace millisecond
