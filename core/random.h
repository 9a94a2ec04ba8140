// Random numbers and distributions, built of the op random_bits, for the authors of importers and passes. A random
// number depends on the seed, the number of previous runs of the program, the draw within the program, and the position
// of the element in the whole tensor. The draws of a program are therefore the same on any number of ranks, on any
// mesh, in the forward and the backward pass, and when a program continues from a checkpoint (docs/decisions/0021).
//
//   graph @noise(state %random/seed: i64[], state %random/step: i64[]) -> (y: f32[4], %random/step: i64[])
//
// Seed and step are states, which the first draw adds. The seed is 0 unless the state is set. The graph increments the
// step in each run. Functions take a Builder and return null after an error, as the functions of the Builder do.

#pragma once

#include <cstdint>
#include <string_view>

#include "core/builder.h"

namespace lockstep {

inline constexpr std::string_view kRandomSeed = "random/seed", kRandomStep = "random/step";

// Removes the two states if no draw uses them. Returns true if it did.
bool RemoveUnusedRandomStates(Graph& graph);

// One draw of a program: four random words for each element of a tensor. Adds the states if the graph has none.
class RandomDraw {
 public:
  // `salt` changes the seed for this draw. Used for operators that have a seed of their own.
  RandomDraw(Builder& b, Shape shape, uint64_t salt = 0);

  Value Word(int64_t word);                 // u32: `word` is 0 to 3
  Value Unit(DType dtype, int64_t word);    // uniform in [0, 1), a multiple of 2^-24 (f32, of one word) or of 2^-53
                                            // (f64, of two words, from `word` on)
  Value Above0(DType dtype, int64_t word);  // f32 or f64, uniform in (0, 1]: at least 2^-33 or 2^-65; words as Unit

 private:
  Builder& b_;
  Shape shape_;
  Value seed_, step_, index_;
  int64_t stream_ = 0;
};

// The next two accept any float dtype. Numbers of 16 bits are rounded from f32.
// Uniform in [low, high). Never `high` itself, unless no number of the dtype is between. Requires low <= high, finite.
Value RandomUniform(Builder& b, const TensorType& type, double low, double high, uint64_t salt = 0);
// Normal, by Box and Muller: at most 6.8 (f32) or 9.5 (f64) times `scale` from `mean`.
Value RandomNormal(Builder& b, const TensorType& type, double mean, double scale, uint64_t salt = 0);

// A bool for each element of `probability`, a float tensor: true with that probability.
Value RandomBernoulli(Builder& b, Value probability, uint64_t salt = 0);

// `samples` classes for each row of `logits` [rows, classes], drawn with replacement, with the probabilities of the
// row's softmax: i64[rows, samples].
Value RandomMultinomial(Builder& b, Value logits, int64_t samples, uint64_t salt = 0);

struct Dropped {
  Value result, mask;  // mask: bool, true where x is kept
};
// x, a float tensor. Each element is set to zero with the probability `ratio`, an f32 or f64 scalar, and divided by
// 1 - ratio otherwise. A ratio of 1 gives zeros; a ratio outside [0, 1] gives NaN.
Dropped RandomDropout(Builder& b, Value x, Value ratio, uint64_t salt = 0);

}  // namespace lockstep
