// Launchers of fetch on demand, one per kind of multiplication.
#pragma once

#include "pairs/pairs.h"

namespace millisecond {

// The use of a product. It is stored. Or, as the product of the centre, it is added up with the others. Or, as the
// only product of its row, it goes to the row.
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
