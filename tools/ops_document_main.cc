// Prints docs/ops.md.

#include <iostream>

#include "tools/ops_document.h"

int main() { std::cout << lockstep::OpsDocument(); }
