// Launchers of fetch on demand, by what multiplies. sums: null, or what the centre's products are added to.
#pragma once

#include "dataflow/pairs.h"

namespace millisecond {

cudaError_t fetch_general(const PairLayout& layout, Scalar type, const FetchProducts& p, const AddProducts* sums,
                          cudaStream_t stream);

// Channels that are multiples of 16.
cudaError_t fetch_half(const PairLayout& layout, const FetchProducts& p, const AddProducts* sums,
                       cudaStream_t stream);
cudaError_t fetch_bfloat16(const PairLayout& layout, const FetchProducts& p, const AddProducts* sums,
                           cudaStream_t stream);
cudaError_t fetch_tf32(const PairLayout& layout, const FetchProducts& p, const AddProducts* sums,
                       cudaStream_t stream);

}  // namespace millisecond
