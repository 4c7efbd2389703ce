/* The detector and its operators without Python: C, pointers, sizes and a stream.
 *
 * Every function returns MS_OK or an error; ms_error_message() then describes the error in one line. Streams are
 * cudaStream_t handed over as void*, null for the default stream, so that this header needs no other. Device
 * memory belongs to the device that is current (operators) or that the detector was opened on. Nothing throws.
 *
 * Structs on the host begin with their size, which the caller sets: ms_grid grid = {sizeof grid}. Later versions
 * may add fields at the end, whose zero is their default. So a caller that was compiled with an older header works
 * on, and one with a newer header does, too, as long as it leaves zero what the library does not know. A size of 0
 * is MS_ERROR_ARGUMENT.
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

/* The version of this header; ms_version() is the library's. The first number changes where programs must be
 * compiled again. */
#define MS_VERSION_MAJOR 0
#define MS_VERSION_MINOR 2
#define MS_VERSION_PATCH 0
#define MS_VERSION (10000 * MS_VERSION_MAJOR + 100 * MS_VERSION_MINOR + MS_VERSION_PATCH)
MS_API int32_t ms_version(void);

typedef enum {
  MS_OK = 0,
  MS_ERROR_ARGUMENT = 1, /* a null pointer, a negative size, a value out of its range */
  MS_ERROR_FILE = 2,     /* the network file cannot be read, is damaged or of another version */
  MS_ERROR_CAPACITY = 3, /* more results than there is room for; the room is filled */
  MS_ERROR_MEMORY = 4,   /* no memory left, on the host or on the GPU */
  MS_ERROR_CUDA = 5,     /* anything else that CUDA reports */
  MS_ERROR_INTERNAL = 6
} ms_status;

typedef enum { MS_FP32 = 0, MS_FP16 = 1, MS_BF16 = 2 } ms_type;

/* The error of this thread's last call that failed; valid until the thread's next call. */
MS_API const char* ms_error_message(void);

/* What is told to a log. */
typedef enum {
  MS_LOG_ERROR = 0,  /* a call failed: its ms_error_message */
  MS_LOG_LATE = 1,   /* the GPU gave up waiting for points that the host was copying: the scans run again */
  MS_LOG_LARGER = 2, /* scans did not fit into their graph: they run again in a larger one */
  MS_LOG_GRAPH = 3   /* a graph is recorded for scans of this size: the call takes longer */
} ms_event;

/* Every event of the process from now on, as one line, to a function (null: to none, as at the start). It is
 * called in the thread where the event is, one call at a time, and calls nothing of this library. Once ms_set_log
 * has returned, the function before is not called any more. Without a function nothing is written anywhere. */
MS_API void ms_set_log(void (*log)(ms_event event, const char* line, void* user), void* user);

/* ---- detector ---- */

typedef struct ms_detector ms_detector;

/* A detector from a network file, which millisecond export makes of weights: for all precisions and kinds of GPU.
 * precision: of the network; boxes are always computed in fp32. device: number of the GPU. */
MS_API ms_status ms_detector_open(const char* path, ms_type precision, int device, ms_detector** detector);

/* Null is allowed. No call with this detector may be under way, and all of its jobs are collected. */
MS_API void ms_detector_close(ms_detector* detector);

typedef struct {
  uint32_t size;
  int32_t point_width; /* numbers of a point: x, y, z, intensity and further features */
  int32_t most_boxes;  /* that one call can find */
  int32_t classes;
  float range[6];   /* of the grid: x, y, z of the lower corner, then of the upper one, metres */
  int32_t level;    /* 1: the network takes levelled scans, and each call needs ms_scans.moves */
  int32_t velocity; /* 1: the network finds velocities, see ms_scans.velocities */
} ms_detector_info;
MS_API ms_status ms_detector_describe(const ms_detector* detector, ms_detector_info* info);

/* The name of a label from 1 to info.classes, null for others. Valid until the detector is closed. */
MS_API const char* ms_detector_class(const ms_detector* detector, int32_t label);

/* Points that a call left out. */
typedef struct {
  uint32_t size;
  int64_t not_finite;
  int64_t over_cap; /* over the configuration's grid.max_voxels_test */
} ms_left_out;

/* Boxes of one scan, best first.
 *
 * points [count, point_width] float32, on the host or on the detector's GPU. Columns: x, y, z in metres in the
 * LiDAR frame (x forward, y left, z up), the intensity from 0 to 1, further features. These are written on the
 * host, each unless null: boxes [capacity, 7] (x, y, z of the centre, length, width, height, yaw counter-clockwise
 * from x; metres and radians), scores [capacity], labels [capacity] from 1. found: number of boxes. More than
 * `capacity` boxes are MS_ERROR_CAPACITY, and the best are written. left_out may be null. A scan has at most 2^24
 * points.
 *
 * The work goes to `stream`, and the call waits for it. Calls with one detector from several threads run side by
 * side if their streams differ; each takes GPU memory of its own. The first call of a kind records a CUDA graph,
 * which takes longer. ms_detector_warm_up does that ahead. */
MS_API ms_status ms_detect(ms_detector* detector, const float* points, int64_t count, float* boxes, float* scores,
                           int32_t* labels, int64_t capacity, int64_t* found, ms_left_out* left_out, void* stream);

/* Records the graph for scans of up to `count` points before the first of them comes. */
MS_API ms_status ms_detector_warm_up(ms_detector* detector, int64_t count, void* stream);

/* Scans for one pass through the network. */
typedef struct {
  uint32_t size;
  int32_t batch;          /* 1 to 64 */
  const void* points;     /* all scans one after another, on the host or on the detector's GPU */
  const int64_t* counts;  /* [batch], on the host: points of each scan */
  int64_t stride;         /* bytes from one point to the next, point_step of a PointCloud2; 0: 4 * point_width */
  const int32_t* offsets; /* [point_width], on the host: byte of each column in its point; null: 0, 4, 8, ... */
  const float* moves; /* [batch, 13], on the host: how each scan comes into the network's frame; null: as it is */
  float* velocities;  /* [batch, capacity, 2], on the host: where the velocities of the boxes go; null: nowhere */
} ms_scans;

/* As ms_detect for each of the scans, in less time per scan. Written: boxes [batch, capacity, 7], scores and
 * labels [batch, capacity], nothing behind the last box of a scan; found [batch]; left_out: of all scans together.
 * Each batch size has CUDA graphs of its own.
 *
 * A move is a matrix [3, 4] by rows, by which (x, y, z, 1) is multiplied, then a factor of the intensity. The GPU
 * moves the points, and the boxes are in the frame to which they come. Scans with moves have graphs of their own.
 *
 * A network with velocities (ms_detector_info.velocity) writes them where ms_scans.velocities points, until the
 * job is collected: for each box metres per second over ground along x and y of its frame. */
MS_API ms_status ms_detect_batch(ms_detector* detector, const ms_scans* scans, float* boxes, float* scores,
                                 int32_t* labels, int64_t capacity, int64_t* found, ms_left_out* left_out,
                                 void* stream);

/* ms_detect_batch in two halves. The first puts the work on the stream and returns. Points on the host are read
 * before it does; points on the GPU are read on the stream, so that later work there may change them. Each job
 * that is not collected yet has a graph and GPU memory of its own. */
typedef struct ms_job ms_job;
MS_API ms_status ms_detect_async(ms_detector* detector, const ms_scans* scans, void* stream, ms_job** job);

/* Waits for a job, in any thread, and writes what ms_detect_batch writes. Errors of the GPU are told here. The job
 * is ended whatever is returned. Until then its detector and its stream, where scans that did not fit run again,
 * must be there. */
MS_API ms_status ms_collect(ms_job* job, float* boxes, float* scores, int32_t* labels, int64_t capacity,
                            int64_t* found, ms_left_out* left_out);

/* As ms_detector_warm_up, for batches of scans with up to `count` points each. */
MS_API ms_status ms_detector_warm_up_batch(ms_detector* detector, int64_t count, int32_t batch, void* stream);

/* ---- tracker ---- */

/* Follows the objects of one recording by the rules of Python's Tracker, where scores that are equal come in the
 * order of names, here in the order of labels. Needs no GPU. */
typedef struct ms_tracker ms_tracker;

typedef struct {
  uint32_t size;
  int32_t confirm;    /* scans in a row, from its first, in which a track must be detected to be reported */
  double birth_score; /* a weaker detection only continues a confirmed track, one below a fifth of it nothing */
  double max_gap;     /* seconds without a detection of birth_score after which a confirmed track ends */
  double coast;       /* seconds for which a track without a detection is reported where it should be */
} ms_tracker_options;

/* options: null for Python's, {sizeof options, 2, 0.5, 1.0, 0.15}. */
MS_API ms_status ms_tracker_create(const ms_tracker_options* options, ms_tracker** tracker);
MS_API void ms_tracker_destroy(ms_tracker* tracker); /* null is allowed */

/* It has no size and does not grow. */
typedef struct {
  int64_t id, age;    /* from 1, never used again; scans since the track began, 0 in its first */
  double box[7];      /* as in ms_detect, smoothed */
  double velocity[2]; /* metres per second along x and y: over ground with poses, else relative to the sensor */
  float score;        /* of the latest detection */
  int32_t label;
} ms_track;

typedef struct {
  uint32_t size;
  int64_t count;
  const ms_track* tracks; /* [count] in the order of ids; valid until the tracker's next call */
} ms_tracks;

/* The tracks with the detections of one more scan: boxes [count, 7], scores and labels [count] as ms_detect writes
 * them, in any order. time: of the scan in seconds, after the scan before. pose [4, 4], row by row: takes points
 * from the LiDAR frame of this scan to the world; for all scans, or null for all. After an error the tracker is as
 * before. One call with a tracker at a time. */
MS_API ms_status ms_tracker_update(ms_tracker* tracker, const float* boxes, const float* scores,
                                   const int32_t* labels, int64_t count, double time, const double* pose,
                                   ms_tracks* tracks);

/* The same with measured velocities [count, 2] as a network with velocities writes them; NaN: unknown; null: none
 * of them is known. They are over ground, and without poses they are not used. */
MS_API ms_status ms_tracker_update_moving(ms_tracker* tracker, const float* boxes, const float* velocities,
                                          const float* scores, const int32_t* labels, int64_t count, double time,
                                          const double* pose, ms_tracks* tracks);

/* ---- encoder ----
 *
 * The detector's first half, from points to the bird's-eye-view map, for a network of another runtime behind it.
 * All sizes are fixed when it is opened, nothing waits for the GPU, and a call can be captured as a CUDA graph. */

typedef struct ms_encoder ms_encoder;

typedef struct {
  uint32_t size;
  int32_t point_width;             /* as in ms_detector_info */
  int32_t channels, height, width; /* of the map; height is along y, width along x */
} ms_encoder_info;

/* The inputs and outputs of a network file's encoder. Needs no GPU. */
MS_API ms_status ms_encoder_describe(const char* path, ms_encoder_info* info);

/* points: the most that a scan has, 1 to 2^24. It decides how many active sites each level has room for: enough
 * for scans of LiDARs with so many points. All memory is taken here. */
MS_API ms_status ms_encoder_open(const char* path, ms_type precision, int device, int64_t points,
                                 ms_encoder** encoder);

/* Null is allowed. Its work must be done. */
MS_API void ms_encoder_close(ms_encoder* encoder);

typedef enum {
  MS_CHANNELS_FIRST = 0, /* [1, channels, height, width] */
  MS_CHANNELS_LAST = 1   /* [1, height, width, channels] */
} ms_layout;

/* A call's report on its scan. It is on the device, has no size and does not grow. */
typedef struct {
  int32_t rows[5];              /* active sites of each level */
  int32_t overflow;             /* not 0: a level has no room for all its sites, and the map is not valid */
  int32_t not_finite, over_cap; /* points that were left out: see ms_left_out */
} ms_encoder_report;

/* Points of one scan to its bird's-eye-view map. points: [points of ms_encoder_open, point_width] float32, as in
 * ms_detect. count: [1] int32, the number of points (null: all). map: [...] in the encoder's precision. report:
 * [1]. All are on the encoder's GPU, points and map at multiples of 16 bytes. Channel z * c + i of the map is
 * channel i at height z, where every height has c channels. An encoder works on one scan at a time: its calls go
 * to one stream. */
MS_API ms_status ms_encode(ms_encoder* encoder, const float* points, const int32_t* count, ms_layout layout,
                           void* map, ms_encoder_report* report, void* stream);

/* ---- operators ----
 *
 * Arrays are in the memory of the current GPU, rows without gaps; structures, shapes and windows are on the host.
 * Calls return before the work is done, which goes to the stream. Nothing waits for it, and memory that a call
 * needs for itself comes from the stream's pool. Features and weights start at multiples of 16 bytes. Sites are
 * int32 [rows, 4] (batch, z, y, x), sorted and without doubles. A count is one int32 on the device: rows from
 * there on hold nothing; null means that all do. Axes are z, y, x. */

typedef struct {
  uint32_t size;
  float lower[3]; /* corner: x, y, z in metres */
  float voxel[3]; /* its size: x, y, z */
  int32_t shape[3];
} ms_grid;

/* Means of the first max_points points of each cell that has some. points [offsets[batch], channels] float32 with
 * x, y, z first, offsets [batch + 1] on the device; point_rows: of points in memory. Written on the device:
 * features [rows, channels] float32, coords [rows, 4], found [1] rows that hold something, dropped [2] int64:
 * points that are not finite, and points without a row. A frame keeps at most max_voxels voxels. */
MS_API ms_status ms_voxelize(const float* points, const int32_t* offsets, int64_t point_rows, int32_t channels,
                             int32_t batch, const ms_grid* grid, int32_t max_points, int32_t max_voxels,
                             int64_t rows, float* features, int32_t* coords, int32_t* found, int64_t* dropped,
                             void* stream);

/* input = output * stride - padding + offset * dilation */
typedef struct {
  uint32_t size;
  int32_t kernel[3], stride[3], padding[3], dilation[3];
} ms_window;

/* The shape of a strided convolution's output. */
MS_API ms_status ms_output_shape(const int32_t shape[3], const ms_window* window, int32_t out[3]);

/* The kernel map (rulebook) of a submanifold convolution: neighbours [volume, rows] int32, the row that each
 * offset (z, y, x) of the kernel reads, -1 for none. The kernel's sizes are odd. state [3] int32 on the device:
 * rows; bit 30 set where a site is wrong; then rows - (first wrong row). */
MS_API ms_status ms_submanifold_map(const int32_t* coords, const int32_t* count, int64_t rows, int32_t batch,
                                    const int32_t shape[3], const int32_t kernel[3], const int32_t dilation[3],
                                    int32_t* neighbours, int32_t* state, void* stream);

/* The sites that a strided convolution reaches, at most `capacity`, and its kernel map: out_coords [capacity, 4],
 * neighbours [volume, capacity]. state [4] int32 on the device: input rows; output rows, which may be passed as a
 * count; bit 1 set where the capacity was too small, bit 30 where a site is wrong; rows - (first wrong row). */
MS_API ms_status ms_strided_map(const int32_t* coords, const int32_t* count, int64_t rows, int32_t batch,
                                const int32_t shape[3], const ms_window* window, int64_t capacity,
                                int32_t* out_coords, int32_t* neighbours, int32_t* state, void* stream);

/* One direction of a kernel map. */
typedef struct {
  uint32_t size;
  int32_t volume;
  const int32_t* neighbours; /* [volume, rows] */
  const int32_t* count;      /* of rows, or null */
  int64_t rows;
  int32_t flipped; /* 1: offset v meets weight[volume - 1 - v], as in the gradient of a submanifold convolution */
} ms_table;

/* out [rows, c_out] = features [., c_in] x weight [volume, c_in, c_out] over the table, in `type`. bias
 * [c_out] float32 and residual [rows, c_out] are added, each unless null. Then ReLU if relu is 1. transposed 1:
 * weight is [volume, c_out, c_in], as the gradient of the features takes it. Sums are in float32. */
MS_API ms_status ms_sparse_conv(ms_type type, const void* features, int32_t c_in, const void* weight,
                                int32_t transposed, int32_t c_out, const ms_table* table, const float* bias,
                                const void* residual, int32_t relu, void* out, void* stream);

/* out [volume, c_in, c_out] float32: the gradient of the weight. features [feature_rows, c_in], gradient
 * [rows, c_out]. */
MS_API ms_status ms_sparse_conv_weight_gradient(ms_type type, const void* features, int64_t feature_rows,
                                                int32_t c_in, const void* gradient, int32_t c_out,
                                                const ms_table* table, float* out, void* stream);

/* Sparse max pooling: out [rows, channels], and source [rows, channels] int32, the rows that the maxima came from.
 */
MS_API ms_status ms_max_pool(ms_type type, const void* features, int32_t channels, const ms_table* table,
                             void* out, int32_t* source, void* stream);

/* Rows as a bird's-eye-view map [batch, y, x, z * channels], zero elsewhere. */
MS_API ms_status ms_bev_map(ms_type type, const void* features, const int32_t* coords, const int32_t* count,
                            int64_t rows, int32_t channels, int32_t batch, const int32_t shape[3], void* out,
                            void* stream);

/* Boxes are float32 [n, 7]: x, y, z of the centre, length, width, height, yaw. */
typedef enum { MS_OVERLAP_AREA = 0, MS_OVERLAP_IOU_BEV = 1, MS_OVERLAP_IOU_3D = 2 } ms_overlap_kind;

/* out [a_count, b_count] float32: every box of a with every box of b. */
MS_API ms_status ms_overlap(const float* a, int64_t a_count, const float* b, int64_t b_count, ms_overlap_kind kind,
                            float* out, void* stream);

/* Non-maximum suppression. order [n] int64: the boxes from the best on, null where they are in this order. labels
 * [n] int64: only boxes of one label suppress each other; null: all do. Written: indices [max_output] int64,
 * padded with -1, and kept [1] int32. */
MS_API ms_status ms_nms(const float* boxes, const int64_t* order, const int64_t* labels, const int32_t* count,
                        int64_t n, float iou_threshold, int32_t max_output, int64_t* indices, int32_t* kept,
                        void* stream);

/* From the predictions of all anchors to boxes, best first, in each frame by itself: best class, score threshold,
 * the before_nms best, decoding, NMS. Predictions in `type`: class_logits [batch, anchors, classes], residuals
 * [batch, anchors, 7], directions [batch, anchors, 2]; anchor_boxes [anchors, 7] float32. per_class 1: boxes of
 * different classes suppress nothing. Written: boxes [batch, after_nms, 7], scores [batch, after_nms] float32,
 * labels [batch, after_nms] int64 from 1, zero behind the last box, and kept [batch] int32. */
typedef struct {
  uint32_t size;
  ms_type type;
  int32_t batch, anchors, classes;
  const void *class_logits, *residuals, *directions;
  const float* anchor_boxes;
  float score, iou_threshold;
  int32_t before_nms, after_nms, per_class;
} ms_predictions;
MS_API ms_status ms_select_boxes(const ms_predictions* predictions, float* boxes, float* scores, int64_t* labels,
                                 int32_t* kept, void* stream);

/* ---- operators on points ----
 *
 * Clouds are float32 [batch, count, 3], finite. A row is the int64 number of a point in its cloud. */

/* Furthest point sampling: points [batch, count, 3] float32, start [batch] int64 the first choices -> chosen
 * [batch, samples] int64. */
MS_API ms_status ms_furthest_points(const float* points, const int64_t* start, int32_t batch, int32_t count,
                                    int32_t samples, int64_t* chosen, void* stream);

/* Ball query: rows [batch, queries, samples] of the first points within the radius of each of the centres
 * [batch, queries, 3]. A ball with fewer points repeats its first one, one without any has -1. */
MS_API ms_status ms_ball_query(const float* points, int32_t batch, int32_t count, const float* centres,
                               int32_t queries, float radius, int32_t samples, int64_t* rows, void* stream);

/* The three nearest points of each of query_points [batch, queries, 3]: rows and squared_distances, both
 * [batch, queries, 3]; -1 and infinity where a cloud has fewer. */
MS_API ms_status ms_three_nearest(const float* points, int32_t batch, int32_t count, const float* query_points,
                                  int32_t queries, int64_t* rows, float* squared_distances, void* stream);

/* out [batch, places, channels] = features [batch, count, channels] of the rows [batch, places], zero where a row
 * is outside of its cloud. */
MS_API ms_status ms_group_points(ms_type type, const void* features, int32_t batch, int32_t count,
                                 int32_t channels, const int64_t* rows, int32_t places, void* out, void* stream);

/* out [batch, queries, channels] = sums of features [batch, count, channels] of the rows [batch, queries, 3] times
 * their weights [batch, queries, 3] float32. */
MS_API ms_status ms_interpolate(ms_type type, const void* features, int32_t batch, int32_t count, int32_t channels,
                                const int64_t* rows, const float* weights, int32_t queries, void* out,
                                void* stream);

#ifdef __cplusplus
}
#endif

#endif
