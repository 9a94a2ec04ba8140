// Options and suppressions of the sanitizers, linked into every binary by --config=asan and --config=tsan. They are for
// libraries that are not ours and not instrumented; findings in our code are fixed, not suppressed.
#define EXPORTED extern "C" __attribute__((visibility("default"), used))

EXPORTED const char* __asan_default_options() { return "detect_stack_use_after_return=1:strict_string_checks=1"; }

EXPORTED const char* __ubsan_default_options() { return "print_stacktrace=1"; }

// Open MPI and its components keep memory until the process ends.
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

// Each process sleeps before it exits, by default for a second, to find races of other threads. Tests of ranks start
// hundreds of processes.
EXPORTED const char* __tsan_default_options() { return "atexit_sleep_ms=50"; }

// The thread sanitizer cannot see the locks inside these libraries.
EXPORTED const char* __tsan_default_suppressions() {
  return "called_from_lib:libmpi.so.40\n"
         "called_from_lib:libopen-pal.so.40\n"
         "called_from_lib:libopen-rte.so.40\n"
         "called_from_lib:libdnnl.so.3\n"
         "called_from_lib:libgomp.so.1\n"
         "called_from_lib:libLLVM.so.19.1\n"
         // Open MPI's plugins take locks in varying order, and unlock locks in destructors that were never locked.
         // Whichever thread calls MPI moves the data of all threads.
         "deadlock:mca_\n"
         "mutex:mca_\n"
         "race:mca_\n"
         // The loader frees the thread_local variables of an opened library after the thread has ended.
         "race:_dl_deallocate_tls\n"
         "race:libdnnl.so.3\n"
         "race:libLLVM.so.19.1\n";
}
