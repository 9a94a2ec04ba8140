// All of Lockstep for C++ programs. `make install` installs this header and those that it includes, directly or
// indirectly. docs/cpp.md has a program.

#pragma once

#include "backends/backend.h"
#include "backends/compile.h"
#include "backends/compile_and_load.h"
#include "backends/option_table.h"
#include "core/builder.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "core/verifier.h"
#include "frontends/onnx_exporter.h"
#include "frontends/onnx_importer.h"
#include "passes/distribute/distribute.h"
#include "passes/training/autodiff.h"
#include "passes/training/evaluation.h"
#include "passes/training/train_step.h"
#include "runtime/collective.h"
#include "runtime/comm/in_process.h"
#include "runtime/comm/mpi/from_environment.h"
#include "runtime/execution/executor.h"
