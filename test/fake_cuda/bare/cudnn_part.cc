// A part of cuDNN: a library that exists and does nothing.
namespace lockstep::bare {
int part = 0;
}  // namespace lockstep::bare
