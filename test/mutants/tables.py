"""Replacements for a mutant: the operators and functions of C++ that are easily confused with each other."""

OPERATORS = {
    "<": ["<=", ">="],
    "<=": ["<", ">"],
    ">": [">=", "<="],
    ">=": [">", "<"],
    "==": ["!="],
    "!=": ["=="],
    "&&": ["||"],
    "||": ["&&"],
    "+": ["-"],
    "-": ["+"],
    "*": ["+"],
    "/": ["*"],
    "%": ["/"],
    "&": ["|"],
    "|": ["&"],
    "<<": [">>"],
    ">>": ["<<"],
    "+=": ["-="],
    "-=": ["+="],
    "*=": ["+="],
    "&=": ["|="],
    "|=": ["&="],
}
LOGICAL = {"&&", "||"}
COMPARISONS = {"<", "<=", ">", ">=", "==", "!="}
LOOSER = {"||", "+", "-", "|"}  # may bind less tightly than the text they replace, so they need parentheses
FUNCTIONS = {"min": "max", "max": "min", "any_of": "all_of", "all_of": "any_of", "none_of": "any_of"}
SKIPPED_MACROS = {"LOCKSTEP_CHECK", "assert"}
