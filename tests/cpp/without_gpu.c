/* What the library does where there is no GPU, called from C: without_gpu NETWORK DAMAGED. */
#include <millisecond.h>
#include <stdio.h>
#include <string.h>

static void print_event(ms_event event, const char* line, void* user) {
  printf("%s %d %s\n", (const char*)user, (int)event, line);
}

static void print_status(const char* what, ms_status status) {
  printf("%s %d %s\n", what, (int)status, status == MS_OK ? "" : ms_error_message());
}

/* ms_encoder_describe into the first bytes of a struct; prints what they hold then. */
static void describe(const char* network, uint32_t size, unsigned char behind) {
  unsigned char bytes[64];
  int32_t numbers[6];
  memset(bytes, behind, sizeof bytes);
  memset(bytes, 0x55, sizeof(ms_encoder_info));
  memcpy(bytes, &size, sizeof size);
  print_status("describe", ms_encoder_describe(network, (ms_encoder_info*)(void*)bytes));
  memcpy(numbers, bytes, sizeof numbers);
  printf("numbers %d %d %d %d %d %d\n", numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]);
}

/* One object in two scans, then a time that goes back. */
static void track(void) {
  const float box[7] = {10, 2, -1, 4, 2, 1.5f, 0}, score = 0.75f;
  const int32_t label = 3;
  const double times[3] = {0, 0.1, 0.05};
  ms_tracker* tracker = NULL;
  ms_tracks found = {sizeof found};
  int scan;
  print_status("tracker", ms_tracker_create(NULL, &tracker));
  for (scan = 0; scan < 3; ++scan) {
    print_status("update", ms_tracker_update(tracker, box, &score, &label, 1, times[scan], NULL, &found));
    printf("tracks %d\n", (int)found.count);
  }
  if (found.count == 1)
    printf("track %d %d %d %.2f at %.0f %.0f\n", (int)found.tracks->id, (int)found.tracks->age,
           (int)found.tracks->label, found.tracks->score, found.tracks->box[0], found.tracks->box[1]);
  ms_tracker_destroy(tracker);
}

int main(int count, char** arguments) {
  char log[] = "log";
  ms_detector* detector = NULL;
  ms_job* job = NULL;
  ms_scans scans = {sizeof scans};
  ms_window window = {sizeof window, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}};
  const int32_t shape[3] = {9, 20, 31};
  const int32_t empty[3] = {9, 0, 31}, neighbours[1] = {0};
  const ms_window wide = {sizeof wide, {1, 1, 1}, {1, 1, 1}, {1073741823, 0, 1}, {1, 1, 1}};
  const ms_table table = {sizeof table, 1, neighbours, NULL, 1, 0};
  float* const device = (float*)(uintptr_t)4096; /* is not read here */
  int32_t out[3] = {0, 0, 0};
  if (count != 3) return 2;
  printf("version %d %d\n", (int)ms_version(), MS_VERSION);

  describe(arguments[1], sizeof(ms_encoder_info), 0);
  describe(arguments[1], 3 * sizeof(int32_t), 0x55);
  describe(arguments[1], sizeof(ms_encoder_info) + 8, 0);
  describe(arguments[1], sizeof(ms_encoder_info) + 8, 0x55);
  describe(arguments[1], 0, 0);
  describe(arguments[1], 1 << 30, 0);
  print_status("null", ms_encoder_describe(arguments[1], NULL));

  print_status("shape", ms_output_shape(shape, &window, out));
  printf("numbers %d %d %d\n", out[0], out[1], out[2]);
  window.size -= sizeof window.dilation; /* whose default is zero */
  print_status("shape", ms_output_shape(shape, &window, out));

  window.size = sizeof window;
  print_status("shape", ms_output_shape(empty, &window, out));
  print_status("shape", ms_output_shape(shape, &wide, out));
  print_status("gradient", ms_sparse_conv_weight_gradient(MS_FP16, device, 1, 8, NULL, 8, &table, device, NULL));
  print_status("interpolate", ms_interpolate(MS_FP16, device, 1, 1, 8, NULL, device, -1, device, NULL));

  track();
  ms_set_log(print_event, log);
  print_status("open", ms_detector_open(arguments[2], MS_FP16, 0, &detector));
  print_status("begin", ms_detect_async(NULL, &scans, NULL, &job));
  ms_set_log(NULL, NULL);
  print_status("collect", ms_collect(job, NULL, NULL, NULL, 0, NULL, NULL));
  return 0;
}
