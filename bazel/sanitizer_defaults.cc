// Options and suppressions of the sanitizers, linked into every binary by --config=asan and --config=tsan.
// They are for libraries that are not ours and not instrumented; a finding in our code is mended, not listed here.
#define EXPORTED extern "C" __attribute__((visibility("default"), used))

EXPORTED const char* __asan_default_options() { return "detect_stack_use_after_return=1:strict_string_checks=1"; }

EXPORTED const char* __ubsan_default_options() { return "print_stacktrace=1"; }

// Open MPI and what it is made of keep memory until the process ends.
EXPORTED const char* __lsan_default_suppressions() {
  return "leak:libmpi.so\n"
         "leak:libopen-pal.so\n"
         "leak:libopen-rte.so\n"
         "leak:mca_\n"
         "leak:libpmix\n"
         "leak:libhwloc\n"
         "leak:libevent\n"
         "leak:libibverbs\n"
         "leak:libucs.so\n"
         "leak:libfabric\n";
}

// At its end each process sleeps, by default for a second, in case a thread still runs into something: tests of ranks
// start hundreds.
EXPORTED const char* __tsan_default_options() { return "atexit_sleep_ms=50"; }

// The locks inside these libraries are invisible to the thread sanitizer.
EXPORTED const char* __tsan_default_suppressions() {
  return "called_from_lib:libmpi.so.40\n"
         "called_from_lib:libopen-pal.so.40\n"
         "called_from_lib:libopen-rte.so.40\n"
         "called_from_lib:libdnnl.so.3\n"
         "called_from_lib:libgomp.so.1\n"
         "called_from_lib:libLLVM.so.19.1\n"
         // Open MPI's plugins order their locks as they please, and unlock in destructors what was never locked.
         // Whichever thread calls MPI moves the data of all.
         "deadlock:mca_\n"
         "mutex:mca_\n"
         "race:mca_\n"
         // The loader frees the thread_local variables of a library that was opened, and knows that the thread has
         // ended.
         "race:_dl_deallocate_tls\n"
         "race:libdnnl.so.3\n"
         "race:libLLVM.so.19.1\n";
}
