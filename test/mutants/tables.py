"""What one could have written instead: the operators and functions of C++ that are easily mistaken for each other."""

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
LOOSER = {"||", "+", "-", "|"}  # may bind less than what they stand for, so that they need parentheses
FUNCTIONS = {"min": "max", "max": "min", "any_of": "all_of", "all_of": "any_of", "none_of": "any_of"}
SKIPPED_MACROS = {"LOCKSTEP_CHECK", "assert"}
