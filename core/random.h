// What is drawn at random, written with random_bits: for the authors of importers and passes. A number follows from the
// seed, from how many times the program has run, from which of its draws it is, and from the place of the element in
// the whole tensor. So the draws of a program are the same on any number of ranks, on any mesh, in the forward and the
// backward pass, and where a program goes on from saved states (docs/decisions/0021).
//
//   graph @noise(state %random/seed: i64[], state %random/step: i64[]) -> (y: f32[4], %random/step: i64[])
//
// Seed and step are states, which the first draw adds: the seed is whatever the state is set to, 0 if nobody does; the
// step counts the runs, in the graph. Functions take a Builder and return null after an error, as its own do.

#pragma once

#include <cstdint>
#include <string_view>

#include "core/builder.h"

namespace lockstep {

inline constexpr std::string_view kRandomSeed = "random/seed", kRandomStep = "random/step";

// Takes the states out again if nothing draws by them. True if it did.
bool RemoveUnusedRandomStates(Graph& graph);

// One draw of a program: four random words for each element of a tensor. Adds the states if need be.
class RandomDraw {
 public:
  // `salt` changes the seed for this draw: for operators that have a seed of their own.
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

// Of any float dtype, those of 16 bits being rounded from f32:
// Uniform in [low, high): never `high` itself, if there is a number of the dtype between. Requires low <= high, finite.
Value RandomUniform(Builder& b, const TensorType& type, double low, double high, uint64_t salt = 0);
// Normal, by Box and Muller: at most 6.8 (f32) or 9.5 (f64) times `scale` from `mean`.
Value RandomNormal(Builder& b, const TensorType& type, double mean, double scale, uint64_t salt = 0);

// true with the probability that the element of `probability`, which is of floats, says: bool.
Value RandomBernoulli(Builder& b, Value probability, uint64_t salt = 0);

// `samples` classes for each row of `logits` [rows, classes], drawn with replacement, each class as likely as the
// softmax of the row says: i64[rows, samples].
Value RandomMultinomial(Builder& b, Value logits, int64_t samples, uint64_t salt = 0);

struct Dropped {
  Value result, mask;  // mask: bool, true where x stays
};
// x, of floats, with each element zero with the probability `ratio`, a scalar of f32 or f64, and divided by 1 - ratio
// otherwise. A ratio of 1 gives zeros; one that is not in [0, 1] NaN.
Dropped RandomDropout(Builder& b, Value x, Value ratio, uint64_t salt = 0);

}  // namespace lockstep
