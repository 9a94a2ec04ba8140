// A part of cuDNN: a library that is there.
namespace lockstep::bare {
int part = 0;
}  // namespace lockstep::bare
