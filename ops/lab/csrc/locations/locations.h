// Location tables, where a site's row is found without a kernel map: an array of all cells, or a hash of the
// sites.
#pragma once

#include "common.h"
#include "index/index.h"

namespace millisecond {

// A site's key is the number of its cell in the padded grid; see ops/lab/locations.py.
struct LocationTable {
  const int64_t* keys;  // [size] of a hash, -1 = empty; null: an array, whose index is the key
  const int32_t* rows;  // [size] the row of a cell's site; of an array -1 = none
  int64_t size;         // cells, or slots: a power of two
};

// The rows of a convolution, and the keys of their offsets.
struct Lookup {
  LocationTable table;
  const int64_t* sites;    // [rows] key of the first cell of each row's window
  const int64_t* offsets;  // [volume] keys from there to the other cells
  int32_t rows;
  int32_t volume;
};

struct DirectConvolution {
  const void* features;  // [source rows, c_in]
  const void* weight;    // [volume, c_in, c_out]
  const float* bias;     // [c_out] or null
  const void* residual;  // [rows, c_out] or null
  void* out;             // [rows, c_out]
  Lookup lookup;
  int32_t c_in, c_out;
  bool relu;
};

// The outputs of a strided convolution.
struct ReachOutputs {
  const int32_t* coords;  // [rows, 1 + dims]
  int32_t rows, dims;
  Window window;
  int32_t shape[3];  // of the outputs, (z, y, x)
  int64_t* keys;     // [size] a hash; the slots hold -1 before
  int64_t size;      // a power of two, above the number of outputs
  int64_t* list;     // [as many as there may be outputs] their keys in any order
  int32_t* count;    // how many they are; 0 before
};
cudaError_t reach_outputs(const ReachOutputs& p, cudaStream_t stream);

// Fill a hash with the rows of these keys, all different. The slots hold -1 before.
cudaError_t fill_hash(const int64_t* sites, int rows, int64_t* keys, int32_t* values, int64_t size,
                      cudaStream_t stream);
// neighbours [volume, rows]: the source row for each offset of each row, -1 = none.
cudaError_t locate(const Lookup& p, int32_t* neighbours, cudaStream_t stream);
cudaError_t conv_direct(Scalar type, const DirectConvolution& p, cudaStream_t stream);

}  // namespace millisecond
