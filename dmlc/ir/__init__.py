"""The intermediate representation: types, attributes, ops, text form. Imports nothing else of dmlc."""
