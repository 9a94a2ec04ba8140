"""Models with bodies, functions, sequences and optionals, in ONNX's text form, and models of operators for which ONNX
has no case.

MODELS has for each name a model, and a NumPy function of its inputs that returns all of its outputs. Inputs are random
f32: a model of an operator of integers casts them. REFUSED has models that the import must refuse, with the error
messages.
"""

import math
from collections.abc import Callable

import numpy as np


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _model(graph: str, functions: str = "", opset: int = 18) -> str:
    imports = f'"" : {opset}, "local" : 1, "com.microsoft" : 1'
    return f"<ir_version: 9, opset_import: [{imports}]>\n{graph}\n{functions}"


def _function(name: str, rest: str, opset: int = 18) -> str:
    return f'<domain: "local", opset_import: ["" : {opset}, "local" : 1]>\n{name} {rest}\n'


_SCALE = _function(
    "Scale",
    """<by: float = 2.0> (x) => (y) {
         factor = Constant <value_float: float = @by> ()
         y = Mul(x, factor)
       }""",
)


def _long_loop(x: np.ndarray) -> list:
    k, y, z = np.array([0.5, 0.25, 0.125]), x, []
    for i in range(2000):
        y = y * k + x
        z.append(y * i)
    return [y, np.stack(z), np.array(2000)]


MODELS: dict[str, tuple[str, Callable[..., list]]] = {
    # --- Functions -------------------------------------------------------------------------------------------------
    "function_with_default_attribute": (
        _model(
            """g (float[2,3] x) => (float[2,3] y, float[2,3] z) {
             y = local.Scale(x)
             z = local.Scale <by = 5.0> (y)
           }""",
            _SCALE,
        ),
        lambda x: [2 * x, 10 * x],
    ),
    # A function has its own names: x, y and factor mean other values in the graph.
    "functions_that_call_functions": (
        _model(
            """g (float[2,3] x, float[2,3] factor) => (float[2,3] y) {
             t = local.Twice <times = 3.0> (factor)
             y = Sub(t, x)
           }""",
            _function(
                "Twice",
                """<times> (factor) => (result) {
                 y = local.Scale <by: float = @times> (factor)
                 result = local.Scale <by: float = @times> (y)
               }""",
            )
            + _SCALE,
        ),
        lambda x, factor: [9 * factor - x],
    ),
    "function_with_opset_of_its_own": (
        _model(
            """g (float[2,3] x) => (float[3] y) { y = local.Sum(x) }""",
            _function("Sum", "(x) => (y) { y = ReduceMean <axes = [0], keepdims = 0> (x) }", opset=11),
        ),
        lambda x: [x.mean(axis=0)],
    ),
    "function_with_optional_input": (
        _model(
            """g (float[4] x) => (float[4] y, float[4] z) {
             low = Constant <value = float {-0.5}> ()
             high = Constant <value = float {0.25}> ()
             y = local.Bound(x, low)
             z = local.Bound(x, , high)
           }""",
            _function("Bound", "(x, low, high) => (y) { y = Clip(x, low, high) }"),
        ),
        lambda x: [np.maximum(x, -0.5), np.minimum(x, 0.25)],
    ),
    "function_with_body": (
        _model(
            """g (float[4] x) => (float[4] y) {
             y = local.Pick <positive = 0> (x)
           }""",
            _function(
                "Pick",
                """<positive: int = 1> (x) => (y) {
                 p = Constant <value_int: int = @positive> ()
                 condition = Cast <to = 9> (p)
                 y = If (condition) <
                   then_branch = yes () => (a) { a = Identity(x) },
                   else_branch = no () => (a) {
                     c = Constant <value_int: int = @positive> ()
                     f = CastLike(c, x)
                     n = Neg(x)
                     a = Sub(n, f)
                   }>
               }""",
            ),
        ),
        lambda x: [-x],
    ),
    # --- If --------------------------------------------------------------------------------------------------------
    "if_on_a_shape": (
        _model(
            """g (float[2,1,3] x) => (float[2,3] y) {
             s = Shape <start = 1, end = 2> (x)
             one = Constant <value = int64[1] {1}> ()
             is_one = Equal(s, one)
             condition = Squeeze(is_one)
             y = If (condition) <
               then_branch = yes () => (a) { a = Squeeze(x, one) },
               else_branch = no () => (a) { a = Identity(x) }>
           }""",
        ),
        lambda x: [x[:, 0]],
    ),
    # Both outer branches define u, and both inner ones define w. The graph's t is visible in all of them.
    "if_in_if_with_the_same_names": (
        _model(
            """g (float[3] x) => (float[3] y) {
             yes = Constant <value = bool {1}> ()
             no = Constant <value = bool {0}> ()
             t = Neg(x)
             s = If (yes) <
               then_branch = a () => (u) {
                 t2 = Add(t, x)
                 v = Exp(t2)
                 u = If (no) <
                   then_branch = b () => (w) { w = Identity(x) },
                   else_branch = c () => (w) { v2 = Add(v, x)  w = Add(v2, t) }>
               },
               else_branch = d () => (u) { u = Identity(t) }>
             y = Add(s, t)
           }""",
        ),
        lambda x: [1 - x],
    ),
    # --- Loop ------------------------------------------------------------------------------------------------------
    "loop_that_carries_and_stacks": (
        _model(
            """g (float[2,3] x) => (float[2,3] y, float[4,2,3] all) {
             trips = Constant <value = int64 {4}> ()
             condition = Constant <value = bool {1}> ()
             y, all = Loop (trips, condition, x) <body = b (int64 i, bool c, float[2,3] v) => (bool c2, float[2,3] w, float[2,3] s) {
               c2 = Identity(c)
               f = Cast <to = 1> (i)
               w = Add(v, f)
               s = Mul(w, x)
             }>
           }""",
        ),
        lambda x: [x + 6, np.stack([(x + k) * x for k in (0, 1, 3, 6)])],
    ),
    "loop_that_its_condition_ends": (
        _model(
            """g (float[3] x) => (float[3] y) {
             trips = Constant <value = int64 {9223372036854775807}> ()
             condition = Constant <value = bool {1}> ()
             y = Loop (trips, condition, x) <body = b (int64 i, bool c, float[3] v) => (bool c2, float[3] w) {
               three = Constant <value = int64 {3}> ()
               c2 = Less(i, three)
               w = Add(v, x)
             }>
           }""",
        ),
        lambda x: [5 * x],
    ),
    "loop_without_iterations": (
        _model(
            """g (float[3] x) => (float[3] y, float[0,3] all) {
             trips = Constant <value = int64 {0}> ()
             condition = Constant <value = bool {1}> ()
             y, all = Loop (trips, condition, x) <body = b (int64 i, bool c, float[3] v) => (bool c2, float[3] w, float[3] s) {
               c2 = Identity(c)
               w = Neg(v)
               s = Identity(w)
             }>
           }""",
        ),
        lambda x: [x, np.zeros((0, 3), np.float32)],
    ),
    "loop_in_loop_whose_inputs_hide_names": (
        _model(
            """g (float[3] x) => (float[3] y) {
             trips = Constant <value = int64 {2}> ()
             condition = Constant <value = bool {1}> ()
             y = Loop (trips, condition, x) <body = outer (int64 i, bool c, float[3] v) => (bool c2, float[3] w) {
               c2 = Identity(c)
               inner_trips = Add(i, trips)
               u = Loop (inner_trips, c, v) <body = inner (int64 i, bool c, float[3] v) => (bool c2, float[3] w) {
                 c2 = Identity(c)
                 f = Cast <to = 1> (i)
                 w = Add(v, f)
               }>
               w = Mul(u, x)
             }>
           }""",
        ),
        lambda x: [((x + 1) * x + 3) * x],
    ),
    # The body's k hides the graph's.
    "initializers_of_bodies": (
        _model(
            """g (float[3] x) => (float[3] y) <float[3] k = {7, 8, 9}, int64 trips = {3}, bool condition = {1}> {
             t = Loop (trips, condition, x) <body = b (int64 i, bool c, float[3] v) => (bool c2, float[3] u)
                                                   <float[3] k = {1, 2, 3}> {
               c2 = Identity(c)
               u = Add(v, k)
             }>
             s = If (condition) <
               then_branch = yes () => (float[3] a) <float[3] w = {2, 2, 2}> { a = Mul(t, w) },
               else_branch = no () => (float[3] a) { a = Neg(t) }>
             y = Add(s, k)
           }""",
        ),
        lambda x: [2 * (x + 3 * np.array([1, 2, 3])) + np.array([7, 8, 9])],
    ),
    # --- Loops that are too long to be unrolled --------------------------------------------------------------------
    "loop_that_runs_with_the_program": (
        _model(
            """g (float[3] x) => (float[3] y, float[2000,3] z, int64 n) <float[3] k = {0.5, 0.25, 0.125}> {
             trips = Constant <value = int64 {2000}> ()
             condition = Constant <value = bool {1}> ()
             zero = Constant <value = int64 {0}> ()
             y, n, z = Loop (trips, condition, x, zero) <
               body = b (int64 i, bool c, float[3] v, int64 m) => (bool c2, float[3] w, int64 m2, float[3] e) {
                 one = Constant <value = int64 {1}> ()
                 c2 = Identity(c)
                 kept = Mul(v, k)
                 w = Add(kept, x)
                 m2 = Add(m, one)
                 f = Cast <to = 1> (i)
                 e = Mul(w, f)
               }>
           }""",
        ),
        lambda x: _long_loop(x),
    ),
    # A shorter loop, whose body needs numbers at import. Each unrolled run knows them.
    "loop_of_many_shapes": (
        _model(
            """g (float[40] x) => (float y) {
             trips = Constant <value = int64 {39}> ()
             condition = Constant <value = bool {1}> ()
             last = Loop (trips, condition, x) <body = b (int64 i, bool c, v) => (bool c2, w) {
               c2 = Identity(c)
               from = Constant <value = int64[1] {1}> ()
               to = Constant <value = int64[1] {1000}> ()
               w = Slice(v, from, to)
             }>
             y = ReduceSum <keepdims = 0> (last)
           }""",
        ),
        lambda x: [x[39]],
    ),
    "long_loop_that_does_not_begin": (
        _model(
            """g (float[3] x) => (float[3] y, float[0,3] z) {
             trips = Constant <value = int64 {2000}> ()
             condition = Constant <value = bool {0}> ()
             y, z = Loop (trips, condition, x) <body = b (int64 i, bool c, float[3] v) => (bool c2, float[3] w, float[3] s) {
               c2 = Identity(c)
               w = Neg(v)
               s = Exp(v)
             }>
           }""",
        ),
        lambda x: [x, np.zeros((0, 3), x.dtype)],
    ),
    "scan_that_runs_with_the_program": (
        _model(
            """g (float[2,50] x) => (float[2] last, float[2,50] sums, float[50,2] columns) {
                 zero = Constant <value = float[2] {0, 0}> ()
                 last, sums, columns = Scan <num_scan_inputs = 2, scan_input_axes = [-1, 1], scan_input_directions = [1, 0],
                                             scan_output_axes = [1, 0], scan_output_directions = [1, 0],
                   body = b (float[2] s, float[2] e, float[2] q) => (float[2] s2, float[2] o, float[2] d) {
                     s2 = Add(s, e)
                     o = Identity(s2)
                     d = Mul(q, e)
                   }> (zero, x, x)
               }""",
        ),
        lambda x: [x.sum(axis=1), np.cumsum(x[:, ::-1], axis=1)[:, ::-1], (x * x[:, ::-1]).T],
    ),
    # --- Operators of which ONNX has no case of the kind ------------------------------------------------------------
    # Fixed indices with a constant step become a slice; others do not.
    "gather_of_fixed_places": (
        _model(
            """g (float[5,2] x) => (float[3,2] y, float[2,2] z, float[5,2] w, float[3,2] e)
                  <int64[3] i = {0, 1, 3}, int64[2] j = {-2, -1}, int64[5] k = {4, 3, 2, 1, 0}, int64[3] l = {0, 2, 4}> {
             y = Gather <axis = 0> (x, i)
             z = Gather <axis = 0> (x, j)
             w = Gather <axis = 0> (x, k)
             e = Gather <axis = 0> (x, l)
           }""",
        ),
        lambda x: [x[[0, 1, 3]], x[3:], x[::-1], x[::2]],
    ),
    # A score at the threshold is not above it.
    "boxes_at_the_threshold": (
        _model(
            """g (float[1] x) => (int64[1,3] y, float[1] z)
                  <float[1,2,4] boxes = {0, 0, 1, 1, 5, 5, 6, 6}, float[1,1,2] scores = {0.5, 0.75}, int64 most = {9},
                   float overlap = {0.5}, float least = {0.5}> {
             y = NonMaxSuppression (boxes, scores, most, overlap, least)
             z = Neg(x)
           }""",
        ),
        lambda x: [np.array([[0, 0, 1]]), -x],
    ),
    # --- Sequences -------------------------------------------------------------------------------------------------
    "sequence_edits": (
        _model(
            """g (float[3] a, float[2] b, float[4] c) => (float[15] y, int64 n) {
             first = Constant <value = int64 {0}> ()
             last = Constant <value = int64 {-1}> ()
             s = SequenceConstruct(a, b)
             s2 = SequenceInsert(s, c, first)
             s3 = SequenceInsert(s2, a, last)
             s4 = SequenceInsert(s3, c)
             s5 = SequenceErase(s4, first)
             same = Identity(s5)
             s6 = SequenceErase(same)
             x = SequenceAt(s5, last)
             n = SequenceLength(s5)
             t = SequenceInsert(s6, x)
             y0 = ConcatFromSequence <axis = 0> (t)
             u = SequenceAt(t, first)
             y1 = Concat <axis = 0> (y0, u)
             y = Neg(y1)
           }""",
        ),
        lambda a, b, c: [-np.concatenate([a, a, b, c, a]), np.array(4)],
    ),
    "sequence_split_stacked_and_concatenated": (
        _model(
            """g (float[6,4] x) => (float[2,3,4] y, float[4,6] z, float[6,4] w) {
             three = Constant <value = int64 {3}> ()
             sizes = Constant <value = int64[2] {1, 5}> ()
             s = SplitToSequence <axis = 0> (x, three)
             y = ConcatFromSequence <axis = 0, new_axis = 1> (s)
             columns = SplitToSequence <axis = 1, keepdims = 0> (x)
             z = ConcatFromSequence <axis = -2, new_axis = 1> (columns)
             rows = SplitToSequence <axis = 0> (x, sizes)
             w = ConcatFromSequence <axis = 0> (rows)
           }""",
        ),
        lambda x: [x.reshape(2, 3, 4), x.T, x],
    ),
    "sequence_through_loop_and_if": (
        _model(
            """g (float[3] x) => (float[3,3] y) {
             trips = Constant <value = int64 {3}> ()
             condition = Constant <value = bool {1}> ()
             empty = SequenceEmpty <dtype = 1> ()
             s = Loop (trips, condition, empty) <body = b (int64 i, bool c, seq(float[3]) v) => (bool c2, seq(float[3]) w) {
               c2 = Identity(c)
               one = Constant <value = int64 {1}> ()
               is_one = Equal(i, one)
               f = Cast <to = 1> (i)
               e = Add(x, f)
               w = If (is_one) <
                 then_branch = yes () => (seq(float[3]) t) { first = Constant <value = int64 {0}> ()  t = SequenceInsert(v, e, first) },
                 else_branch = no () => (seq(float[3]) t) { t = SequenceInsert(v, e) }>
             }>
             y = ConcatFromSequence <axis = 0, new_axis = 1> (s)
           }""",
        ),
        lambda x: [np.stack([x + 1, x, x + 2])],
    ),
    "sequence_map_over_two": (
        _model(
            """g (float[4,2] x, float[2] z) => (float[4,2] y) {
             a = SplitToSequence <axis = 0, keepdims = 0> (x)
             doubled = Add(x, x)
             b = SplitToSequence <axis = 0, keepdims = 0> (doubled)
             s = SequenceMap (a, b, z) <body = f (float[2] p, float[2] q, float[2] r) => (float[2] t) {
               m = Mul(p, q)
               t = Add(m, r)
             }>
             y = ConcatFromSequence <axis = 0, new_axis = 1> (s)
           }""",
        ),
        lambda x, z: [2 * x * x + z],
    ),
    "optional_that_is_full_and_that_is_empty": (
        _model(
            """g (float[3] x) => (float[3] y, bool full, bool none) {
             o = Optional(x)
             e = Optional <type = float[3]> ()
             full = OptionalHasElement(o)
             none = OptionalHasElement(e)
             y0 = OptionalGetElement(o)
             y = Neg(y0)
           }""",
        ),
        lambda x: [-x, np.array(True), np.array(False)],
    ),
    # --- Scan ------------------------------------------------------------------------------------------------------
    # Sums of the columns of x, from the last one on. The output has the sums as columns, in the order of x.
    "scan_backwards_along_the_last_axis": (
        _model(
            """g (float[2,3] x) => (float[2] last, float[2,3] sums) {
                 zero = Constant <value = float[2] {0, 0}> ()
                 last, sums = Scan <num_scan_inputs = 1, scan_input_axes = [-1], scan_input_directions = [1],
                                    scan_output_axes = [1], scan_output_directions = [1],
                   body = b (float[2] s, float[2] e) => (float[2] s2, float[2] o) {
                     s2 = Add(s, e)
                     o = Identity(s2)
                   }> (zero, x)
               }""",
        ),
        lambda x: [x.sum(axis=1), np.cumsum(x[:, ::-1], axis=1)[:, ::-1]],
    ),
    # The second output goes forwards: its columns are in the order of computation.
    "scan_of_two_inputs_in_two_directions": (
        _model(
            """g (float[2,3] x) => (float[2,3] products, float[3,2] columns) {
                 products, columns = Scan <num_scan_inputs = 2, scan_input_axes = [1, 1], scan_input_directions = [0, 1],
                                           scan_output_axes = [1, 0],
                   body = b (float[2] p, float[2] q) => (float[2] o, float[2] c) {
                     o = Mul(p, q)
                     c = Identity(q)
                   }> (x, x)
               }""",
        ),
        lambda x: [x * x[:, ::-1], x[:, ::-1].T],
    ),
    "scan_of_a_batch_backwards": (
        """<ir_version: 3, opset_import: ["" : 8]>
           g (float[2,1] s0, float[2,3,1] x) => (float[2,1] last, float[2,3,1] sums) {
             last, sums = Scan <num_scan_inputs = 1, directions = [1],
               body = b (float[1] s, float[1] e) => (float[1] s2, float[1] o) {
                 s2 = Add(s, e)
                 o = Identity(s2)
               }> ( , s0, x)
           }""",
        lambda s0, x: [s0 + x.sum(axis=1), s0[:, None] + np.cumsum(x[:, ::-1], axis=1)],
    ),
    # --- Operators of which ONNX has no case -----------------------------------------------------------------------
    "global_lp_pool": (
        _model("g (float[2,3,4,5] x) => (float[2,3,1,1] y) { y = GlobalLpPool <p = 3> (x) }"),
        lambda x: [(np.abs(x) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)],
    ),
    "max_roi_pool": (
        _model(
            """g (float[2,3,6,6] x) => (float[1,3,2,1] y) {
             regions = Constant <value = float[1,5] {1, 2, 4, 10, 9}> ()
             y = MaxRoiPool <pooled_shape = [2, 1], spatial_scale = 0.5> (x, regions)
           }"""
        ),
        # Rows 2 to 5, columns 1 to 5.
        lambda x: [x[1:, :, 2:, 1:].reshape(1, 3, 2, 10).max(3, keepdims=True)],
    ),
    # --- Operators of other domains --------------------------------------------------------------------------------
    "gelu_of_onnx_runtime": (
        _model("g (float[2,3] x) => (float[2,3] y) { y = com.microsoft.Gelu(x) }"),
        lambda x: [_gelu(x)],
    ),
    "bias_gelu_of_onnx_runtime": (
        _model("g (float[2,3] x, float[3] bias) => (float[2,3] y) { y = com.microsoft.BiasGelu(x, bias) }"),
        lambda x, bias: [_gelu(x + bias)],
    ),
    "quick_gelu_of_onnx_runtime": (
        _model(
            """g (float[2,3] x) => (float[2,3] y, float[2,3] z) {
             y = com.microsoft.QuickGelu(x)
             z = com.microsoft.QuickGelu <alpha = 0.5> (x)
           }"""
        ),
        lambda x: [x / (1 + np.exp(-1.702 * x)), x / (1 + np.exp(-0.5 * x))],
    ),
    "function_with_an_operator_of_another_domain": (
        _model(
            "g (float[2,3] x) => (float[2,3] y) { y = local.F(x) }",
            """<domain: "local", opset_import: ["" : 18, "com.microsoft" : 1]>
               F (x) => (y) { y = com.microsoft.Gelu(x) }""",
        ),
        lambda x: [_gelu(x)],
    ),
}


# A small model with all of these constructs. The test imports damaged copies with each of its bytes changed.
FUZZED = _model(
    """g (float[batch,2] x) => (float[batch,2] y, float[2,n] z) {
         trips = Constant <value = int64 {2}> ()
         condition = Constant <value = bool {1}> ()
         empty = SequenceEmpty <dtype = 1> ()
         s = Loop (trips, condition, empty) <body = b (int64 i, bool c, seq(float[n,2]) v)
                                                   => (bool c2, seq(float[n,2]) w) {
           c2 = Identity(c)
           f = Cast <to = 1> (i)
           e = Add(x, f)
           w = If (c) <
             then_branch = yes () => (seq(float[n,2]) t) { t = SequenceInsert(v, e) },
             else_branch = no () => (seq(float[n,2]) t) { t = SequenceErase(v) }>
         }>
         r = SequenceMap (s) <body = f (float[n,2] p) => (float[n,2] q) { q = local.Scale <by = 3.0> (p) }>
         last = Constant <value = int64 {-1}> ()
         y = SequenceAt(r, last)
         all = ConcatFromSequence <axis = 0> (r)
         z = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = d (float[n] m) => (float[n] o) { o = Neg(m) }> (all)
       }""",
    _SCALE,
)

_LOOP = """g (float[3] x) => (float[3] y) {{
             trips = Constant <value = int64 {{{trips}}}> ()
             condition = Constant <value = bool {{1}}> ()
             y = Loop (trips, condition, x) <body = b (int64 i, bool c, float[3] v) => (bool c2, float[3] w) {{
               {body}
             }}>
           }}"""


def _deep_calls(depth: int) -> str:
    functions = [_function(f"F{i}", f"(x) => (y) {{ y = local.F{i + 1}(x) }}") for i in range(depth)]
    return "".join([*functions, _function(f"F{depth}", "(x) => (y) { y = Neg(x) }")])


def _many_calls(levels: int) -> str:
    """Functions that each call the next one twice."""
    functions = [
        _function(f"F{i}", f"(x) => (y) {{ t = local.F{i + 1}(x)  y = local.F{i + 1}(t) }}") for i in range(levels)
    ]
    return "".join([*functions, _function(f"F{levels}", "(x) => (y) { y = Neg(x) }")])


# (error message, model)
REFUSED: list[tuple[str, str]] = [
    (
        "operator Gelu of domain com.microsoft: the function local.F does not import this domain, at onnx:F_0/Gelu_0",
        _model(
            "g (float[2,3] x) => (float[2,3] y) { y = local.F(x) }",
            _function("F", "(x) => (y) { y = com.microsoft.Gelu(x) }"),
        ),
    ),
    (
        "If: input 0, the condition, must be known before the program runs, at onnx:If_0",
        _model(
            """g (bool c, float[3] x) => (float[3] y) {
                 y = If (c) <then_branch = a () => (t) { t = Neg(x) }, else_branch = b () => (t) { t = Exp(x) }>
               }"""
        ),
    ),
    (
        "Loop: more than 1024 iterations, and the body cannot run as a loop: Loop: its condition may become false",
        _model(_LOOP.format(trips=1025, body="k = Constant <value = int64 {2000}> ()  c2 = Less(i, k)  w = Neg(v)")),
    ),
    (
        "Loop: the body's condition 'c2' must be known before the program runs, at onnx:Loop_2",
        _model(_LOOP.format(trips=2, body="s = ReduceSum <keepdims = 0> (v)  c2 = Cast <to = 9> (s)  w = Neg(v)")),
    ),
    (
        "Add: shapes do not broadcast: f32[3] f32[2], at onnx:Loop_2[0]/Add_2",
        _model(
            _LOOP.format(trips=2, body="c2 = Identity(c)  k = Constant <value = float[2] {1, 2}> ()  w = Add(v, k)")
        ),
    ),
    (
        "nor the output of an earlier node, at onnx:F_1/Add_0",
        _model(
            "g (float[3] x) => (float[3] y) { t = Neg(x)  y = local.F(x) }",
            _function("F", "(x) => (y) { y = Add(x, t) }"),
        ),
    ),
    (
        "local.F: the function calls itself, directly or through others, at onnx:F_0/G_0/F_0",
        _model(
            "g (float[3] x) => (float[3] y) { y = local.F(x) }",
            _function("F", "(x) => (y) { y = local.G(x) }") + _function("G", "(x) => (y) { y = local.F(x) }"),
        ),
    ),
    (
        "local.F: the function has no attribute alpha, at onnx:F_0",
        _model(
            "g (float[3] x) => (float[3] y) { y = local.F <alpha = 1.0> (x) }",
            _function("F", "(x) => (y) { y = Neg(x) }"),
        ),
    ),
    (
        "F: 2 inputs, expected at most 1, at onnx:F_0",
        _model("g (float[3] x) => (float[3] y) { y = local.F(x, x) }", _function("F", "(x) => (y) { y = Neg(x) }")),
    ),
    (
        "bodies and functions nest deeper than 64",
        _model("g (float[3] x) => (float[3] y) { y = local.F0(x) }", _deep_calls(64)),
    ),
    (
        "have more than 131072 nodes, counted as often as they run",
        _model("g (float[3] x) => (float[3] y) { y = local.F0(x) }", _many_calls(40)),
    ),
    (
        "output 's' is a sequence, expected a tensor",
        _model("g (float[3] x) => (seq(float[3]) s) { s = SequenceConstruct(x, x) }"),
    ),
    (
        "Neg: input 0 ('s') is a sequence, expected a tensor, at onnx:Neg_1",
        _model("g (float[3] x) => (float[3] y) { s = SequenceConstruct(x, x)  y = Neg(s) }"),
    ),
    (
        "SequenceAt: position 2 is outside a sequence of 2 elements",
        _model(
            """g (float[3] x) => (float[3] y) {
                 s = SequenceConstruct(x, x)
                 two = Constant <value = int64 {2}> ()
                 y = SequenceAt(s, two)
               }"""
        ),
    ),
    (
        "SequenceMap: input 1 has 1 elements, expected 2 as input 0 has, at onnx:SequenceMap_2",
        _model(
            """g (float[3] x) => (float[2,3] y) {
                 a = SequenceConstruct(x, x)
                 b = SequenceConstruct(x)
                 s = SequenceMap (a, b) <body = f (float[3] p, float[3] q) => (float[3] t) { t = Add(p, q) }>
                 y = ConcatFromSequence <axis = 0, new_axis = 1> (s)
               }"""
        ),
    ),
    (
        "SequenceAt: input 1 (i) must be known before the program runs",
        _model("g (float[3] x, int64 i) => (float[3] y) { s = SequenceConstruct(x, x)  y = SequenceAt(s, i) }"),
    ),
    (
        "SequenceInsert: input 1 is i64[], the elements of the sequence are of type f32",
        _model(
            """g (float[3] x) => (float[3] y) {
                 s = SequenceConstruct(x, x)
                 two = Constant <value = int64 {2}> ()
                 t = SequenceInsert(s, two)
                 y = ConcatFromSequence <axis = 0> (t)
               }"""
        ),
    ),
    (
        "ConcatFromSequence: the sequence has no elements",
        _model("g () => (float[3] y) { s = SequenceEmpty()  y = ConcatFromSequence <axis = 0> (s) }"),
    ),
    (
        "OptionalGetElement: the optional is empty",
        _model("g () => (float[3] y) { o = Optional <type = float[3]> ()  y = OptionalGetElement(o) }"),
    ),
    (
        "Scan: attribute scan_input_axes is [0, 1], expected 1 entries",
        _model(
            """g (float[2,3] x) => (float[2,3] y) {
                 y = Scan <num_scan_inputs = 1, scan_input_axes = [0, 1],
                   body = b (float[3] e) => (float[3] o) { o = Neg(e) }> (x)
               }"""
        ),
    ),
    (
        "Scan: the body has 1 inputs, expected 2, at onnx:Scan_0",
        _model(
            """g (float[2,3] x) => (float[2,3] y) {
                 y = Scan <num_scan_inputs = 2, body = b (float[3] e) => (float[3] o) { o = Neg(e) }> (x, x)
               }"""
        ),
    ),
    (
        "Scan: scans 2 elements of one input, and 3 of another",
        _model(
            """g (float[2,3] x) => (float[2,3] y) {
                 y = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1],
                   body = b (float[3] e, float[2] f) => (float[3] o) { o = Neg(e) }> (x, x)
               }"""
        ),
    ),
    (
        "Loop: the body's output 's' is f32[0] in one run, and f32[1] in another; expected tensors of one type",
        _model(
            """g (float[3] x) => (float[2,3] y) {
                 trips = Constant <value = int64 {2}> ()
                 condition = Constant <value = bool {1}> ()
                 y = Loop (trips, condition) <body = b (int64 i, bool c) => (bool c2, float[n] s) {
                   c2 = Identity(c)
                   zero = Constant <value = int64[1] {0}> ()
                   end = Add(i, zero)
                   s = Slice(x, zero, end)
                 }>
               }"""
        ),
    ),
]
