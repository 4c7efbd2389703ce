// Every launcher of the library: plain pointers to device memory, sizes and a stream. No launcher allocates,
// synchronises or reads device memory from the host, so all of them may be captured in a CUDA graph.
// A launcher returns the launch's error; an empty problem launches nothing and succeeds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace millisecond {

enum class Scalar { float32, float16, bfloat16 };

// ---- index -----------------------------------------------------------------------------------------------------

// ---- voxelize --------------------------------------------------------------------------------------------------

// ---- sparse max pooling ----------------------------------------------------------------------------------------

// ---- dense -----------------------------------------------------------------------------------------------------

// ---- convolution -----------------------------------------------------------------------------------------------

// ---- boxes -----------------------------------------------------------------------------------------------------

}  // namespace millisecond
