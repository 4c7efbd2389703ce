// The tracker without the rest of the library, and its solver of assignments, for test_tracker.py.
#include "tracker.cpp"

extern "C" {

MS_API const char* last_line() { return last_message().c_str(); }

// column_of [rows]: the column of each row, -1 for none
MS_API void assign_columns(const double* costs, int rows, int columns, int* column_of) {
  std::fill_n(column_of, rows, -1);
  const std::vector<double> matrix(costs, costs + rows * columns);
  for (const auto& [row, column] : assign(matrix, rows, columns)) column_of[row] = column;
}

}  // extern "C"
