// From predictions to boxes: the scratch memory of the kernels.
#include <type_traits>

#include "engine/engine.h"

namespace millisecond {

cudaError_t run_select(SelectJob job, bool per_class, const Allocate& allocate, cudaStream_t stream) {
  const auto room = [&](auto*& pointer, int64_t elements) {
    using Pointer = std::remove_reference_t<decltype(pointer)>;
    pointer = static_cast<Pointer>(allocate(job.batch * elements * int64_t(sizeof(*pointer))));
  };
  job.set_keys();
  const int64_t before_nms = job.before_nms, segments = segments_of(job.anchors_count);
  room(job.keys, segments * SELECT_SEGMENT);
  room(job.listed, segments);
  room(job.best_keys, before_nms);
  room(job.chosen, 1);
  room(job.boxes, 7 * before_nms);
  room(job.scores, before_nms);
  room(job.labels, before_nms);
  SuppressJob& nms = job.nms;
  nms.batch = job.batch;
  nms.rows = job.before_nms;
  nms.boxes = job.boxes;
  nms.order = nullptr;
  nms.labels = per_class ? job.labels : nullptr;
  nms.count = job.chosen;
  nms.scores = job.scores;
  nms.classes = job.labels;
  room(nms.mask, before_nms * divide_up(before_nms, 64));
  room(nms.indices, nms.max_output);
  return select_boxes(job, stream);
}

}  // namespace millisecond
