// Launchers of fetch on demand, by what multiplies.
#pragma once

#include "dataflow/pairs.h"

namespace millisecond {

// What becomes of a product: it is stored; as the centre's it is added up with the others; as its row's only one
// it goes to the row.
enum class After { store, add, place };

cudaError_t fetch_general(const PairLayout& layout, Scalar type, const FetchProducts& p, After after,
                          const AddProducts& sums, cudaStream_t stream);

// Channels that are multiples of 16.
cudaError_t fetch_half(const PairLayout& layout, const FetchProducts& p, After after, const AddProducts& sums,
                       cudaStream_t stream);
cudaError_t fetch_bfloat16(const PairLayout& layout, const FetchProducts& p, After after, const AddProducts& sums,
                           cudaStream_t stream);
cudaError_t fetch_tf32(const PairLayout& layout, const FetchProducts& p, After after, const AddProducts& sums,
                       cudaStream_t stream);

}  // namespace millisecond
