// Compares two declarations at compile time, ours with the vendor's. Two declarations are the same if a caller in
// another binary cannot tell them apart: the names of types differ, but the types are passed, stored and pointed to
// alike. Only the sources of this folder, which `make cuda-abi` compiles, include this header.

#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>

namespace lockstep::cuda_abi {

template <typename T>
concept Complete = requires { sizeof(T); };

enum class Kind { kVoid, kInteger, kFloat, kPointer, kFunction, kStruct };

template <typename T>
constexpr Kind KindOf() {
  if constexpr (std::is_void_v<T>) return Kind::kVoid;
  else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) return Kind::kInteger;
  else if constexpr (std::is_floating_point_v<T>) return Kind::kFloat;
  else if constexpr (std::is_pointer_v<T>) return Kind::kPointer;
  else if constexpr (std::is_function_v<T>) return Kind::kFunction;
  else return Kind::kStruct;
}

// True if our struct may end before the vendor's, because one of its members states its size.
template <typename T>
inline constexpr bool kMayBeShorter = false;

template <typename A, typename B>
constexpr bool Same();

template <typename A, typename B>
struct SameFunctions : std::false_type {};
template <typename R, typename... P, typename S, typename... Q>
  requires(sizeof...(P) == sizeof...(Q))
struct SameFunctions<R(P...), S(Q...)> : std::bool_constant<Same<R, S>() && (Same<P, Q>() && ...)> {};

// True if kind, size and alignment agree; for pointers and functions, if the types that they point to, take and return
// agree. A struct that only one side defines is a handle to the other side.
template <typename A, typename B>
constexpr bool Same() {
  if constexpr (KindOf<A>() != KindOf<B>() || std::is_const_v<A> != std::is_const_v<B>) {
    return false;
  } else if constexpr (std::is_pointer_v<A>) {
    return Same<std::remove_pointer_t<A>, std::remove_pointer_t<B>>();
  } else if constexpr (std::is_function_v<A>) {
    return SameFunctions<A, B>::value;
  } else if constexpr (Complete<A> && Complete<B>) {
    return (kMayBeShorter<A> ? sizeof(A) <= sizeof(B) : sizeof(A) == sizeof(B)) && alignof(A) == alignof(B);
  } else {
    return true;
  }
}

}  // namespace lockstep::cuda_abi

// Asserts that our constant has the vendor's value.
#define LOCKSTEP_SAME_CONSTANT(name, value) \
  static_assert(static_cast<long long>(lockstep::cuda::name) == static_cast<long long>(::name), #name);

// Asserts that our type is, to a caller, the same as the vendor's type of that name.
#define LOCKSTEP_SAME_TYPE(type) static_assert(lockstep::cuda_abi::Same<lockstep::cuda::type, ::type>(), #type);

// The same for an enum and its enumerators.
#define LOCKSTEP_SAME_ENUM(type, list) list(LOCKSTEP_SAME_CONSTANT) LOCKSTEP_SAME_TYPE(type)

// Asserts that a member of our struct has the offset of the vendor's. Use it in namespace lockstep::cuda, because lists
// name its types.
#define LOCKSTEP_SAME_MEMBER(structure, type, member)                                           \
  static_assert(offsetof(lockstep::cuda::structure, member) == offsetof(::structure, member) && \
                    lockstep::cuda_abi::Same<type, decltype(::structure::member)>(),            \
                #structure "::" #member);

// Asserts that our function has the parameters and the result of the vendor's. vendor_function is macro-expanded,
// because headers rename functions.
#define LOCKSTEP_SAME_FUNCTION(table, name, vendor_function)                                                     \
  static_assert(lockstep::cuda_abi::Same<decltype(lockstep::cuda::table::name), decltype(&::vendor_function)>(), \
                #name ": parameters or result");
#define LOCKSTEP_TEXT_OF(expanded) #expanded
#define LOCKSTEP_TEXT(name) LOCKSTEP_TEXT_OF(name)
#define LOCKSTEP_SAME_SYMBOL(symbol, vendor_function) \
  static_assert(std::string_view(symbol) == LOCKSTEP_TEXT(vendor_function), symbol);
