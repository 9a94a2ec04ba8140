// Macros for the tables of NVIDIA's libraries. Each header lists its functions, constants and structs once, as macros,
// and these macros turn the lists into declarations. The check of the ABI (test/cuda_abi/) and fakes read the same
// lists.
//
//   #define LOCKSTEP_X_FUNCTIONS(F)  F(result, name, symbol, (parameters)) …
//   #define LOCKSTEP_X_VALUES(V)     V(name, value) …                       the enumerators of one enum
//   #define LOCKSTEP_X_ENUMS(E)      E(type, LOCKSTEP_X_VALUES) …           all enums
//   #define LOCKSTEP_X_STRUCT(M)     M(type, member, initial value) …       in the vendor's order

#pragma once

#define LOCKSTEP_CUDA_ENUMERATOR(name, value) name = value,
#define LOCKSTEP_CUDA_ENUM(type, list) enum type : int { list(LOCKSTEP_CUDA_ENUMERATOR) };
#define LOCKSTEP_CUDA_MEMBER(type, member, initial) type member = initial;
#define LOCKSTEP_CUDA_POINTER(result, name, symbol, parameters) result(*name) parameters = nullptr;

// Sets api.name. For functions with `library` and `api` that return a status.
#define LOCKSTEP_CUDA_LOAD(result, name, symbol, parameters) RETURN_IF_ERROR(library.Load(symbol, api.name));

// The same, but leaves it null if the library lacks it.
#define LOCKSTEP_CUDA_LOAD_IF_THERE(result, name, symbol, parameters) library.Load(symbol, api.name).IgnoreError();
