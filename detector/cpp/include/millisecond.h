/* The detector and its operators without Python: C, pointers, sizes and a stream.
 *
 * Every function returns MS_OK or an error; ms_error_message() then says in one line what was wrong. Streams are
 * cudaStream_t handed over as void*, null for the default stream, so that this header needs no other. Device memory
 * belongs to the device that is current (operators) or that the detector was opened on. Nothing throws.
 */
#ifndef MILLISECOND_H
#define MILLISECOND_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MS_API __attribute__((visibility("default")))
#else
#define MS_API
#endif

typedef enum {
  MS_OK = 0,
  MS_ERROR_ARGUMENT = 1, /* a null pointer, a negative size, a value out of its range */
  MS_ERROR_FILE = 2,     /* the weights file cannot be read, is damaged or is of another network */
  MS_ERROR_CAPACITY = 3, /* more results than there is room for; the room is filled */
  MS_ERROR_MEMORY = 4,   /* no memory left, on the host or on the GPU */
  MS_ERROR_CUDA = 5,     /* anything else that CUDA reports */
  MS_ERROR_INTERNAL = 6
} ms_status;

typedef enum { MS_FP32 = 0, MS_FP16 = 1, MS_BF16 = 2 } ms_type;

/* What went wrong in the last call of this thread that failed; valid until the thread's next call. */
MS_API const char* ms_error_message(void);

/* ---- detector ---------------------------------------------------------------------------------------------------- */

typedef struct ms_detector ms_detector;

/* A detector from a weights file, which holds its configuration too.
 * precision: of the network; boxes are always computed in fp32. device: number of the GPU. */
MS_API ms_status ms_detector_open(const char* path, ms_type precision, int device, ms_detector** detector);

/* Null is allowed. No call with this detector may be under way. */
MS_API void ms_detector_close(ms_detector* detector);

typedef struct {
  int32_t point_width; /* numbers of a point: x, y, z, intensity and further features */
  int32_t most_boxes;  /* that one call can find */
  int32_t classes;
  float range[6]; /* of the grid: x, y, z of the lower corner, then of the upper one, metres */
} ms_detector_info;
MS_API ms_status ms_detector_describe(const ms_detector* detector, ms_detector_info* info);

/* The name of a label from 1 to info.classes, null for others. Valid until the detector is closed. */
MS_API const char* ms_detector_class(const ms_detector* detector, int32_t label);

/* Points that a call left out. */
typedef struct {
  int64_t not_finite;
  int64_t over_cap; /* over the configuration's grid.max_voxels_test */
} ms_left_out;

/* Boxes of one scan, best first.
 *
 * points [count, point_width] float32, on the host or on the detector's GPU: x, y, z in metres in the LiDAR frame
 * (x forward, y left, z up), the intensity from 0 to 1, further features. Written on the host, each unless null:
 * boxes [capacity, 7] (x, y, z of the centre, length, width, height, yaw counter-clockwise from x; metres and
 * radians), scores [capacity], labels [capacity] from 1. found: number of boxes; more than `capacity` are
 * MS_ERROR_CAPACITY, and the best are written. left_out may be null.
 *
 * The work goes to `stream`, and the call waits for it. Calls with one detector from several threads run side by side
 * if their streams differ; each takes GPU memory of its own. The first call of a kind records a CUDA graph, which
 * takes longer. ms_detector_warm_up does that ahead. */
MS_API ms_status ms_detect(ms_detector* detector, const float* points, int64_t count, float* boxes, float* scores,
                           int32_t* labels, int64_t capacity, int64_t* found, ms_left_out* left_out, void* stream);

/* Records the graph for scans of up to `count` points before the first of them comes. */
MS_API ms_status ms_detector_warm_up(ms_detector* detector, int64_t count, void* stream);

#ifdef __cplusplus
}
#endif

#endif
