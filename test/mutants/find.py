"""Finds places for plausible mistakes in a C++ source: libclang says where expressions and statements are.

Found mutants need not compile: constants, template arguments and the like are left to the compiler (see schemata.py).
Error messages and LOCKSTEP_CHECK, which no test should reach, are left out on purpose.
"""

import bisect
import ctypes
import itertools
import pathlib

from clang import cindex
from clang.cindex import Cursor, CursorKind, TypeKind
from source import Kind, Mutant, make_mutant, numbered
from tables import COMPARISONS, FUNCTIONS, LOGICAL, LOOSER, OPERATORS, SKIPPED_MACROS

DECLARES_FUNCTION = {
    CursorKind.FUNCTION_DECL,
    CursorKind.FUNCTION_TEMPLATE,
    CursorKind.CXX_METHOD,
    CursorKind.CONSTRUCTOR,
    CursorKind.DESTRUCTOR,
    CursorKind.CONVERSION_FUNCTION,
}
DECLARES_CLASS = {CursorKind.CLASS_DECL, CursorKind.STRUCT_DECL, CursorKind.CLASS_TEMPLATE}
WITH_BODY = {
    CursorKind.IF_STMT,
    CursorKind.FOR_STMT,
    CursorKind.WHILE_STMT,
    CursorKind.CXX_FOR_RANGE_STMT,
    CursorKind.COMPOUND_STMT,
}
OPEN_TYPES = (TypeKind.DEPENDENT, TypeKind.UNEXPOSED, TypeKind.AUTO, TypeKind.POINTER, TypeKind.ENUM)
NUMBERS = {*range(TypeKind.BOOL.value, TypeKind.LONGDOUBLE.value + 1), *(kind.value for kind in OPEN_TYPES)}


def offset(location: cindex.SourceLocation) -> int:
    """Returns the offset of a location in the file; for an argument of a macro, the offset of the argument."""
    file, line, column, result = cindex.c_object_p(), ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    where = [ctypes.byref(each) for each in (file, line, column, result)]
    cindex.conf.lib.clang_getSpellingLocation(location, *where)
    return result.value


def unwrap(cursor: Cursor) -> Cursor:
    """Returns the expression below implicit conversions and temporaries."""
    while cursor.kind == CursorKind.UNEXPOSED_EXPR:
        children = list(cursor.get_children())
        if len(children) != 1:
            break
        cursor = children[0]
    return cursor


class Finder:
    """Walks one file. Cursors from the body of a macro have the range of the macro's use, so they are only walked
    through.
    """

    def __init__(self, file: str, source: bytes, unit: cindex.TranslationUnit):
        self.file, self.source = file, source
        self.mutants: list[Mutant] = []
        self.macros: dict[tuple[int, int], str] = {}
        self.top = []
        for cursor in unit.cursor.get_children():
            if cursor.location.file is None or cursor.location.file.name != unit.spelling:
                continue
            if cursor.kind == CursorKind.MACRO_INSTANTIATION:
                self.macros[self.range(cursor)] = cursor.spelling
            elif not cursor.kind.is_preprocessing():
                self.top.append(cursor)
        tokens = [each for each in unit.get_tokens(extent=unit.cursor.extent) if each.kind != cindex.TokenKind.COMMENT]
        self.tokens = [(offset(each.extent.start), offset(each.extent.end)) for each in tokens]

    def find(self) -> list[Mutant]:
        for cursor in self.top:
            self.walk(cursor, None, "")
        return numbered(self.mutants)

    # Locations.

    def range(self, cursor: Cursor) -> tuple[int, int]:
        return offset(cursor.extent.start), offset(cursor.extent.end)

    def text(self, begin: int, end: int) -> str:
        return self.source[begin:end].decode()

    def token_before(self, begin: int) -> str:
        at = bisect.bisect_left(self.tokens, (begin, 0)) - 1
        return self.text(*self.tokens[at]) if at >= 0 else ""

    def beside_operator(self, begin: int, end: int) -> bool:
        return self.token_before(begin) in OPERATORS or self.text(*self.token_from(end)) in OPERATORS

    def token_from(self, end: int) -> tuple[int, int]:
        """Returns the first token that begins at `end` or later."""
        at = bisect.bisect_left(self.tokens, (end, 0))
        return self.tokens[at] if at < len(self.tokens) else (len(self.source), len(self.source))

    def add(self, function: str, begin: int, end: int, text: str, kind: Kind = Kind.EXPRESSION) -> None:
        self.mutants.append(make_mutant(self.file, function, self.source, begin, end, kind, text))

    # The walk.

    def walk(self, cursor: Cursor, parent: Cursor | None, function: str) -> None:
        begin, end = self.range(cursor)
        macro = self.macros.get((begin, end))
        if macro in SKIPPED_MACROS or cursor.kind in (CursorKind.ENUM_DECL, CursorKind.STATIC_ASSERT):
            return
        if cursor.kind in DECLARES_FUNCTION or cursor.kind in DECLARES_CLASS:
            outer = cursor.semantic_parent
            prefix = f"{outer.spelling}::" if outer is not None and outer.kind in DECLARES_CLASS else ""
            function = prefix + cursor.spelling
        if function and begin < end:
            if macro is None:
                self.visit(cursor, function)
            if parent is not None:
                self.visit_statement(cursor, parent, function, macro)
        for child in self.walked(cursor):
            self.walk(child, cursor, function)

    def walked(self, cursor: Cursor) -> list[Cursor]:
        """Returns the children in which mistakes are looked for."""
        children = list(cursor.get_children())
        if cursor.kind == CursorKind.CALL_EXPR and cursor.spelling == "operator<<" and "Error" in cursor.type.spelling:
            return children[:1]  # the rest is an error message
        if cursor.kind == CursorKind.CASE_STMT:
            return children[1:]
        if cursor.kind == CursorKind.VAR_DECL and "constexpr" in self.text(*self.range(cursor)).split("=")[0]:
            return []
        return children

    def visit(self, cursor: Cursor, function: str) -> None:
        match cursor.kind:
            case CursorKind.BINARY_OPERATOR | CursorKind.COMPOUND_ASSIGNMENT_OPERATOR | CursorKind.CALL_EXPR:
                self.visit_operator(cursor, function)
                if cursor.kind == CursorKind.CALL_EXPR:
                    self.visit_call(cursor, function)
            case CursorKind.UNARY_OPERATOR:
                self.visit_unary(cursor, function)
            case CursorKind.INTEGER_LITERAL | CursorKind.CXX_BOOL_LITERAL_EXPR:
                self.visit_literal(cursor, function)
            case CursorKind.DECL_REF_EXPR:
                self.visit_enumerator(cursor, function)
            case CursorKind.IF_STMT | CursorKind.CONDITIONAL_OPERATOR | CursorKind.WHILE_STMT:
                self.visit_condition(cursor, function)
            case CursorKind.RETURN_STMT:
                self.visit_return(cursor, function)

    def visit_operator(self, cursor: Cursor, function: str) -> None:
        begin, end = self.range(cursor)
        ranges = sorted({self.range(child) for child in cursor.get_children()})
        ranges = [each for each in ranges if each[0] < each[1]]
        if len(ranges) < 2 or ranges[0][0] != begin or ranges[-1][1] != end:
            return  # a call in the usual form, or part of a macro
        left, right = ranges[0], ranges[-1]
        at = self.token_from(left[1])
        operator = self.text(*at)
        if operator not in OPERATORS or at[1] > right[0] or self.token_from(at[1])[0] != right[0]:
            return
        kind = cursor.type.get_canonical().kind.value
        for other in OPERATORS[operator]:
            if operator in COMPARISONS or kind in NUMBERS:
                changed = self.text(begin, at[0]) + other + self.text(at[1], end)
                loose = other in LOOSER and self.beside_operator(begin, end)
                self.add(function, begin, end, f"({changed})" if loose else changed)
        if operator in LOGICAL:
            self.add(function, begin, end, self.text(*left), Kind.CONDITION)
            self.add(function, begin, end, self.text(*right), Kind.CONDITION)

    def visit_call(self, cursor: Cursor, function: str) -> None:
        begin, end = self.range(cursor)
        arguments = [self.range(argument) for argument in cursor.get_arguments() if argument is not None]
        if not cursor.spelling or self.source[end - 1 : end] != b")":
            return
        if arguments and (begin == arguments[0][0] or self.token_before(arguments[0][0]) != "("):
            return  # an operator
        callee = self.text(begin, arguments[0][0] if arguments else end)
        if cursor.spelling in FUNCTIONS and cursor.spelling in callee:
            other = callee.replace(cursor.spelling, FUNCTIONS[cursor.spelling], 1)
            self.add(function, begin, end, other + self.text(begin + len(callee.encode()), end))
        for first, second in itertools.pairwise(arguments) if cursor.spelling not in FUNCTIONS else ():
            one, two = self.text(*first), self.text(*second)
            if one != two and first[1] < second[0] and self.same_type(cursor, arguments, first, second):
                swapped = two + self.text(first[1], second[0]) + one
                self.add(function, begin, end, self.text(begin, first[0]) + swapped + self.text(second[1], end))
        declared = cursor.referenced
        if declared is not None and declared.kind == CursorKind.CXX_METHOD and declared.is_static_method():
            self.visit_factory(cursor, declared, function)

    def same_type(self, cursor: Cursor, arguments: list, first: tuple, second: tuple) -> bool:
        types = [
            argument.type.get_canonical().spelling.replace("const ", "")
            for argument in cursor.get_arguments()
            if argument is not None and self.range(argument) in (first, second)
        ]
        return len(types) == 2 and types[0] == types[1] and len(set(arguments)) == len(arguments)

    def visit_factory(self, cursor: Cursor, declared: Cursor, function: str) -> None:
        """`Placement::Split(0)` => the other values that its class makes without arguments."""
        begin, end = self.range(cursor)
        head = self.text(begin, end).split("(")[0]
        if not head.endswith("::" + declared.spelling):
            return
        for other in declared.semantic_parent.get_children():
            if other.kind != CursorKind.CXX_METHOD or not other.is_static_method() or other == declared:
                continue
            if other.result_type == declared.result_type and not list(other.get_arguments()):
                self.add(function, begin, end, head[: -len(declared.spelling)] + other.spelling + "()")

    def visit_unary(self, cursor: Cursor, function: str) -> None:
        begin, end = self.range(cursor)
        token = self.token_from(begin)
        if self.text(*token) in ("!", "-") and token[0] == begin:
            kind = Kind.CONDITION if self.text(*token) == "!" else Kind.EXPRESSION
            self.add(function, begin, end, self.text(token[1], end), kind)

    def visit_literal(self, cursor: Cursor, function: str) -> None:
        begin, end = self.range(cursor)
        text = self.text(begin, end)
        if text in ("true", "false"):
            self.add(function, begin, end, "false" if text == "true" else "true")
            return
        digits = text.rstrip("uUlLzZ")
        try:
            value = int(digits, 0)
        except ValueError:
            return
        for other in (value + 1, value - 1) if value > 0 else (1,):
            form = hex(other) if digits.startswith("0x") else str(other)
            self.add(function, begin, end, form + text[len(digits) :])

    def visit_enumerator(self, cursor: Cursor, function: str) -> None:
        declared = cursor.referenced
        if declared is None or declared.kind != CursorKind.ENUM_CONSTANT_DECL:
            return
        begin, end = self.range(cursor)
        text = self.text(begin, end)
        names = [each.spelling for each in declared.semantic_parent.get_children()]
        if declared.spelling in names and len(names) > 1 and text.endswith(declared.spelling):
            other = names[(names.index(declared.spelling) + 1) % len(names)]
            self.add(function, begin, end, text[: -len(declared.spelling)] + other)

    def visit_condition(self, cursor: Cursor, function: str) -> None:
        for child in cursor.get_children():
            begin, end = self.range(child)
            following = self.text(*self.token_from(end))
            if cursor.kind == CursorKind.CONDITIONAL_OPERATOR:
                found = following == "?"
            else:
                found = self.token_before(begin) in ("(", ";") and following == ")"
            if not found or not child.kind.is_expression() or (begin, end) in self.macros:
                continue
            self.add(function, begin, end, "false", Kind.CONDITION)
            if cursor.kind != CursorKind.WHILE_STMT:
                self.add(function, begin, end, "true", Kind.CONDITION)
            return

    def visit_return(self, cursor: Cursor, function: str) -> None:
        children = list(cursor.get_children())
        if len(children) != 1:
            return
        begin, end = self.range(children[0])
        semicolon = self.token_from(end)
        of_type = children[0].type.get_canonical().spelling
        if of_type == "absl::Status" and self.text(*semicolon) == ";" and "OkStatus" not in self.text(begin, end):
            self.add(function, self.range(cursor)[0], semicolon[1], "return absl::OkStatus();", Kind.STATEMENT)
        if of_type == "bool" and unwrap(children[0]).kind == CursorKind.CALL_EXPR and self.source[begin] != ord("!"):
            self.add(function, begin, end, f"!({self.text(begin, end)})", Kind.CONDITION)

    def visit_statement(self, cursor: Cursor, parent: Cursor, function: str, macro: str | None) -> None:
        """A forgotten call, assignment, `continue` or `break`."""
        begin, end = self.range(cursor)
        if parent.kind not in WITH_BODY or (begin, end) == self.range(parent):
            return
        if self.token_before(begin) not in ("{", "}", ";", ")", "else", ":") or self.text(begin, end).startswith("("):
            return
        if parent.kind in (CursorKind.FOR_STMT, CursorKind.WHILE_STMT) and self.token_before(begin) != ")":
            return  # part of the loop's head
        semicolon = self.token_from(end)
        if self.text(*semicolon) != ";":
            return
        jump = cursor.kind in (CursorKind.CONTINUE_STMT, CursorKind.BREAK_STMT)
        if jump or macro == "RETURN_IF_ERROR" or (macro is None and cursor.kind.is_expression()):
            alone = self.token_before(begin) in (")", "else")
            self.add(function, begin, semicolon[1], ";" if alone else "", Kind.STATEMENT)


def find_mutants(file: str, path: pathlib.Path, arguments: list[str]) -> list[Mutant]:
    """Returns the mutants of the file at `path`, which is compiled with these arguments."""
    unit = cindex.Index.create().parse(
        str(path), args=arguments, options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD
    )
    errors = [str(each) for each in unit.diagnostics if each.severity >= cindex.Diagnostic.Fatal]
    if errors:
        raise RuntimeError(f"mutants: libclang cannot read {file}: {errors[0]}")
    return Finder(file, path.read_bytes(), unit).find()
