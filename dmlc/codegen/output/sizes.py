"""Open sizes of a program: read off the inputs at the start of a run, checked, and put into the shapes of table.py."""

LARGEST = 2**31 - 1  # of a dim


class WrongSize(Exception):
    """A size that the program does not serve: one sentence."""


def numbers(table, shapes, others=None):
    """Open size (as model.py calls it) -> number, from the shapes of inputs by name; what no shape given tells is as in `others`, else usual.
    Raises `WrongSize` naming the input, the dim, the value and what is allowed."""
    rows = getattr(table, "SIZES", {})
    found = {variable: row["like"] for variable, row in rows.items()} | (others or {})
    for variable, row in rows.items():
        shape = shapes.get(row["input"])
        if shape is not None and row["dim"] < len(shape):
            found[variable] = _read(row, shape[row["dim"]])
    for argument in table.ARGUMENTS:
        if argument["role"] == "input" and argument["name"] in shapes and not all(isinstance(n, int) for n in argument["shape"]):
            _check(argument, tuple(shapes[argument["name"]]), found, rows)
    return found


def of_run(table, args):
    """Open size -> number, from the inputs' shapes, or from --shape and --dim. Raises `WrongSize`."""
    if args.inputs is None:
        return asked_for(table, args.dim, args.shape)
    if args.dim or args.shape:
        raise WrongSize("--dim and --shape are for runs without --inputs: the inputs have their sizes")
    return of_file(table, args.inputs)


def of_file(table, path):
    """Open size -> number, from the shapes of the arrays in a .npz file; nothing is read where nothing is open."""
    return numbers(table, shapes_in(path)) if getattr(table, "SIZES", None) else {}


def shapes_in(path):
    """Name -> shape of the arrays in a .npz file, without reading them."""
    import zipfile

    from numpy.lib import format as npy

    shapes = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                version = npy.read_magic(file)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shapes[name.removesuffix(".npy")] = read(file)[0]
    return shapes


def unusual(table, found):
    """The open sizes by name, where they are not those the program is planned for."""
    rows = getattr(table, "SIZES", {})
    named = {row["name"]: found[variable] for variable, row in rows.items()}
    return named if named != {row["name"]: row["like"] for row in rows.values()} else None


def asked_for(table, dims, shapes):
    """Open size -> number for inputs that are made up: from texts such as `batch=4` and `x=4x128`, else the usual ones. Raises `WrongSize`."""
    given, found = {}, {}
    for text in shapes:
        name, _, shape = text.rpartition("=")
        if name not in [a["name"] for a in table.ARGUMENTS if a["role"] == "input"] or not all(n.isdigit() for n in shape.split("x")):
            raise WrongSize(f"--shape takes INPUT=AxB with an input of the program, not '{text}'")
        found[name] = tuple(map(int, shape.split("x")))
        _check_fixed(table, name, found[name])
    for text in dims:
        name, _, n = text.rpartition("=")
        if not name or not n.isdigit():
            raise WrongSize(f"--dim takes NAME=N, not '{text}'")
        given[name] = int(n)
    return numbers(table, found, chosen(table, given))


def chosen(table, given):
    """Open size -> number: `given` by name, else the usual one. Raises `WrongSize`."""
    rows = getattr(table, "SIZES", {})
    names = {row["name"]: variable for variable, row in rows.items()}
    for name, n in given.items():
        if name not in names:
            raise WrongSize(f"the program has no open size '{name}'; it has {', '.join(names) or 'none'}")
        row = rows[names[name]]
        if not _allows(row, n):
            raise WrongSize(f"{name} is {n}, which this program does not serve: {allowed(row)}")
    return {variable: given.get(row["name"], row["like"]) for variable, row in rows.items()}


def allowed(row):
    """What is allowed of a size, in words."""
    most = f" to {row['most']}" if row["most"] is not None else " and more"
    return f"{row['name']} may be {row['least']}{most}"


def _allows(row, n):
    return row["least"] <= n <= (LARGEST if row["most"] is None else row["most"])


def _read(row, n):
    """The size that makes a dim n long."""
    size, rest = divmod(n - row["offset"], row["factor"])
    whole = f"{row['factor']} * {row['name']}" + (f" + {row['offset']}" if row["offset"] > 0 else f" - {-row['offset']}" if row["offset"] else "")
    of = "" if (row["factor"], row["offset"]) == (1, 0) else f", and the dim is {whole}"
    if rest or not _allows(row, size):
        raise WrongSize(f"dim {row['dim']} of input '{row['input']}' is {n}, which this program does not serve: {allowed(row)}{of}")
    return size


def _check_fixed(table, name, shape):
    """An input without open sizes has the shape it was compiled for."""
    wanted = next(a["shape"] for a in table.ARGUMENTS if a["name"] == name)
    if all(isinstance(n, int) for n in wanted) and tuple(wanted) != shape:
        raise WrongSize(f"input '{name}' is {as_text(wanted)} in this program, not {as_text(shape)}: none of its sizes is open")


def _check(argument, shape, found, rows):
    name, wanted = argument["name"], argument["shape"]
    if len(shape) != len(wanted):
        raise WrongSize(f"input '{name}' has {len(shape)} dims; the program takes {len(wanted)}: {as_text(wanted)}")
    for d, (n, size) in enumerate(zip(shape, wanted)):
        due = at(size, found)
        if n == due:
            continue
        if isinstance(size, int):
            raise WrongSize(f"dim {d} of input '{name}' is {n}; the program is compiled for {due}")
        where = ", ".join(f"{row['name']} is {found[v]} by dim {row['dim']} of input '{row['input']}'" for v, row in rows.items() if v in names_in(size))
        raise WrongSize(f"dim {d} of input '{name}' is {n}, but it has to be {size} = {due}: {where}")


def names_in(size):
    import re

    return re.findall(r"[A-Za-z_]\w*", size)


def as_text(shape):
    return "x".join(map(str, shape))


def at(size, found):
    """A size of table.py (a number, or an expression in open sizes) as a number."""
    return size if isinstance(size, int) else eval(size, {"__builtins__": {}}, found)  # the program's own text


def row_at(row, found):
    """A row of ARGUMENTS or RESULTS with its shape and grains as numbers."""
    return {**row, "shape": tuple(at(n, found) for n in row["shape"]), "grains": tuple(at(n, found) for n in row["grains"])}
