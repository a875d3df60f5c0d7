"""Classes of payloads: what they read, what they refuse and where, how instances are stored."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    Union,
)
from uuid import UUID

import msgspec
import pydantic
import pytest
from django.core.exceptions import ValidationError
from typing_extensions import TypedDict as OtherTypedDict

from deadletter import PayloadRejected, payload_types
from deadletter.exceptions import PayloadMismatch
from deadletter.models import Kind
from deadletter.payload import DEPTH_LIMIT, decode
from deadletter.payload_types import PayloadType
from deadletter.status import FailureReason

Sku = NewType("Sku", str)


class Carrier(enum.Enum):
    POST = "post"
    BIKE = "bike"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Line:
    sku: Sku
    quantity: int
    price: Decimal = Decimal("1.00")

    def __post_init__(self) -> None:
        if self.quantity < 1:
            raise ValueError(f"quantity {self.quantity} is too small")


@dataclass(frozen=True, slots=True)
class Order:
    number: int
    lines: list[Line]
    carrier: Carrier = Carrier.POST
    paid: datetime | None = None
    labels: dict[str, str] = field(default_factory=dict)


class Address(TypedDict):
    street: str
    zip: NotRequired[int]


class Parcel(Address, total=False):
    weight: float
    order: Required[Order]


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


def holder(annotation: Any) -> PayloadType:
    """Return the type of a dataclass with one field, `x`."""
    return PayloadType(make_dataclass("Holder", [("x", annotation)]))


def refused(kind: PayloadType, value: Any) -> PayloadMismatch:
    with pytest.raises(PayloadMismatch) as refusal:
        kind.read(value)
    return refusal.value


def test_a_dict_is_read_as_an_instance_with_nested_instances_and_defaults():
    given = {
        "number": 7,
        "lines": [{"sku": "a", "quantity": 2, "price": "9.90"}, {"sku": "b", "quantity": 1}],
        "carrier": "bike",
        "paid": "2026-01-31T12:00:05.123Z",
    }

    read = PayloadType(Order).read(given)

    assert read == Order(
        7,
        [Line(Sku("a"), 2, Decimal("9.90")), Line(Sku("b"), 1, Decimal("1.00"))],
        Carrier.BIKE,
        datetime(2026, 1, 31, 12, 0, 5, 123000, tzinfo=UTC),
        {},
    )


def test_a_typed_dict_is_read_as_a_dict_with_converted_values():
    given = {"street": "Main", "weight": 2, "order": {"number": 1, "lines": []}}

    read = PayloadType(Parcel).read(given)

    assert read == {"street": "Main", "weight": 2.0, "order": Order(1, [])}
    assert type(read["weight"]) is float
    assert given["weight"] == 2


MOMENT = datetime(2026, 1, 31, 12, 0, 5, 123000, tzinfo=UTC)
ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (bool, True, True),
        (int, 5, 5),
        (float, 1.5, 1.5),
        (float, 5, 5.0),
        (str, "x", "x"),
        (None, None, None),
        (Any, {"a": [1]}, {"a": [1]}),
        (object, [1], [1]),
        (Sku, "x", "x"),
        (Annotated[int, "a note"], 5, 5),
        (datetime, "2026-01-31T12:00:05.123Z", MOMENT),
        (datetime, "2026-01-31T12:00:05", datetime(2026, 1, 31, 12, 0, 5)),
        (date, "2026-01-31", date(2026, 1, 31)),
        (time, "09:30:00", time(9, 30)),
        (timedelta, "P1DT00H00M05S", timedelta(days=1, seconds=5)),
        (timedelta, "-P1DT00H00M05.000001S", -timedelta(days=1, seconds=5, microseconds=1)),
        (UUID, str(ID), ID),
        (Decimal, "9.90", Decimal("9.90")),
        (Decimal, 9, Decimal(9)),
        (list, [1, "a"], [1, "a"]),
        (list[int], [], []),
        (Sequence[int], [1], [1]),
        (tuple, [1, "a"], (1, "a")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 2, 2], {1, 2}),
        (frozenset[str], ["a"], frozenset("a")),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Mapping[UUID, int], {str(ID): 1}, {ID: 1}),
        (dict[Carrier, int], {"bike": 1}, {Carrier.BIKE: 1}),
        (dict[Literal["a"], int], {"a": 1}, {"a": 1}),
        (Optional[int], None, None),  # noqa: UP045 - the old form as well
        (int | None, 5, 5),
        (Union[None, str], "x", "x"),  # noqa: UP007
        (float | int, 5, 5),
        (datetime | str, "soon", "soon"),
        (date | datetime, "2026-01-31T12:00:05.123Z", MOMENT),
        (datetime | date, "2026-01-31", date(2026, 1, 31)),
        (Literal["a", 1, None], 1, 1),
        (Literal[Carrier.BIKE], "bike", Carrier.BIKE),
        (Carrier, "post", Carrier.POST),
        (Size, 2, Size.LARGE),
        (Rights, 3, Rights.READ | Rights.WRITE),
        (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree("a", [Tree("b")])),
    ],
)
def test_a_value_is_read_as_its_annotation_says(annotation: Any, given: Any, expected: Any):
    found = holder(annotation).read({"x": given}).x

    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "given", "problem"),
    [
        (bool, 1, "expected bool, got int"),
        (int, True, "expected int, got bool"),
        (int, 5.0, "expected int, got float"),
        (int, "5", "expected int, got str"),
        (float, True, "expected float, got bool"),
        (float, 10**400, "expected float, got int"),
        (str, None, "expected str, got None"),
        (None, 0, "expected None, got int"),
        (datetime, "2026-01-31", "expected datetime, got str"),
        (datetime, 5, "expected datetime, got int"),
        (date, "2026-13-31", "expected date, got str"),
        (date, "2026-01-31T00:00", "expected date, got str"),
        (time, "09:30:00+02:00", "expected time, got str"),
        (timedelta, "soon", "expected timedelta, got str"),
        (timedelta, "P9999999999D", "expected timedelta, got str"),
        (UUID, "6ba7b810", "expected UUID, got str"),
        (Decimal, 1.1, "expected Decimal, got float"),
        (Decimal, "NaN", "expected Decimal, got str"),
        (Decimal, "x", "expected Decimal, got str"),
        (list[int], {"0": 1}, "expected list, got dict"),
        (tuple[int, str], [1], "expected 2 elements, got 1"),
        (set[Any], [[1]], "cannot be a set: unhashable type: 'list'"),
        (dict[str, int], [1], "expected dict, got list"),
        (int | None, "x", "expected int or None, got str"),
        (Line | str | None, 5, "expected Line or str or None, got int"),
        (Literal["a"], "b", 'expected "a", got str'),
        (Literal[1, "a"], True, 'expected one of 1, "a", got bool'),
        (Literal["a"], ["a"], 'expected "a", got list'),
        (Carrier, "ship", 'expected one of "post", "bike", got str'),
        (Size, True, "expected one of 1, 2, got bool"),
        (Rights, 8, "expected Rights, got int"),
        (Line, [], "expected Line, got list"),
        (Address, "x", "expected Address, got str"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_type_and_without_the_value(
    annotation: Any, given: Any, problem: str
):
    assert str(refused(holder(annotation), {"x": given})) == f"payload.x: {problem}"


def line(**changes: Any) -> dict[str, Any]:
    return {"sku": "a", "quantity": 1} | changes


@pytest.mark.parametrize(
    ("given", "text", "origin"),
    [
        ([], "payload: expected Order, got list", ""),
        ({"lines": []}, "payload.number: is missing; Order needs it", ".number"),
        (
            {"number": 1, "lines": [], "colour": 1},
            "payload.colour: is no field of Order (fields: number, lines, carrier, paid, labels)",
            "",
        ),
        (
            {"number": 1, "lines": [line(), line(), line(quantity="x")]},
            "payload.lines[2].quantity: expected int, got str",
            ".lines[].quantity",
        ),
        (
            {"number": 1, "lines": [line(), {"sku": "a"}]},
            "payload.lines[1].quantity: is missing; Line needs it",
            ".lines[].quantity",
        ),
        (
            {"number": 1, "lines": [line(secret=1)]},
            "payload.lines[0].secret: is no field of Line (fields: sku, quantity, price)",
            ".lines[]",
        ),
        (
            {"number": 1, "lines": [line(quantity=0)]},
            "payload.lines[0]: quantity 0 is too small",
            ".lines[]",
        ),
        (
            {"number": 1, "lines": [], "labels": {"Ann": 5}},
            "payload.labels.Ann: expected str, got int",
            ".labels[]",
        ),
        (
            {"number": 1, "lines": [], "paid": 5},
            "payload.paid: expected datetime or None, got int",
            ".paid",
        ),
    ],
)
def test_a_refusal_names_the_place_and_its_origin_has_nothing_of_the_payload(
    given: Any, text: str, origin: str
):
    refusal = refused(PayloadType(Order), given)

    assert str(refusal) == text
    assert (refusal.field, refusal.failure_reason) == ("payload", FailureReason.VALIDATION_FAILURE)
    assert refusal.place == text.partition(":")[0]
    assert refusal.origin == f"{__name__}:Order{origin}"


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("x", ' "x"'),
        ("é\n", ' "é\\n"'),
        (1.5, " 1.5"),
        (True, " true"),
        (None, ""),
        ([1], ""),
        ("x" * 100, ' "' + "x" * 59 + "…"),
    ],
)
def test_the_text_for_the_sender_quotes_the_value(value: Any, quoted: str):
    refusal = refused(holder(int), {"x": value})

    assert str(refusal.with_value()) == str(refusal) + quoted
    assert refusal.with_value().place == "payload.x"


def test_a_key_that_does_not_fit_is_named():
    refusal = refused(holder(dict[UUID, int]), {"x": {"no-id": 1}})

    assert str(refusal) == "payload.x.no-id key: expected UUID, got str"


def test_a_long_key_is_cut():
    assert refused(PayloadType(Order), {"k" * 500: 1}).place == "payload." + "k" * 40


@dataclass
class Created:
    kind: Literal["created"]
    at: date


@dataclass
class Deleted:
    kind: Literal["deleted"]
    why: str


def test_a_union_of_classes_is_read_as_the_class_that_fits():
    kind = holder(Created | Deleted)

    assert kind.read({"x": {"kind": "deleted", "why": "w"}}).x == Deleted("deleted", "w")
    text = str(refused(kind, {"x": {"kind": "deleted"}}))
    assert text == (
        "payload.x: is neither Created (at: is missing; Created needs it) nor "
        "Deleted (why: is missing; Deleted needs it)"
    )


def test_an_optional_class_is_refused_at_the_place_inside_it():
    refusal = refused(holder(Line | None), {"x": line(quantity="x")})

    assert str(refusal) == "payload.x.quantity: expected int, got str"


def test_keys_of_a_typed_dict_are_required_as_its_annotations_say():
    assert PayloadType(Address).read({"street": "a"}) == {"street": "a"}
    assert "payload.street: is missing" in str(refused(PayloadType(Address), {"zip": 1}))
    assert "payload.order: is missing" in str(refused(PayloadType(Parcel), {"street": "a"}))
    order = {"number": 1, "lines": []}
    assert len(PayloadType(Parcel).read({"street": "a", "order": order})) == 2


def test_a_typed_dict_of_typing_extensions_is_one():
    kind = PayloadType(OtherTypedDict("Other", {"a": int, "b": NotRequired[str]}))

    assert kind.read({"a": 1}) == {"a": 1}
    assert str(refused(kind, {"a": "x"})) == "payload.a: expected int, got str"


@dataclass
class Special:
    a: int
    shared: ClassVar[list[int]] = []
    rate: InitVar[int] = 3
    total: int = field(init=False, default=0)
    _: KW_ONLY
    b: str = "b"

    def __post_init__(self, rate: int) -> None:
        self.total = self.a * rate


def test_variables_of_the_class_and_of_its_constructor_are_no_fields():
    kind = PayloadType(Special)

    assert kind.read({"a": 2, "b": "c"}).total == 6
    for name in ("shared", "rate", "total"):
        assert str(refused(kind, {"a": 2, name: 1})).startswith(f"payload.{name}: is no field of")
    assert decode(kind.accept(Special(2))) == {"a": 2, "b": "b"}


class Choosy:
    error: ClassVar[Exception]


@dataclass
class Guarded(Choosy):
    a: int

    def __post_init__(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "payload: no"),
        (TypeError("no"), "payload: no"),
        (ValidationError(["no", "never"]), "payload: no; never"),
        (ValueError(), "payload: is refused"),
        (ValueError("x" * 9_000), "payload: " + "x" * 495 + "[…]"),
    ],
)
def test_an_error_of_post_init_is_a_mismatch(monkeypatch, error: Exception, text: str):
    monkeypatch.setattr(Choosy, "error", error, raising=False)

    refusal = refused(PayloadType(Guarded), {"a": 1})

    assert str(refusal) == text
    assert refusal.__cause__ is error


def test_another_error_of_post_init_stays_what_it_is(monkeypatch):
    monkeypatch.setattr(Choosy, "error", KeyError("a"), raising=False)

    with pytest.raises(KeyError):
        PayloadType(Guarded).read({"a": 1})


def test_an_instance_is_stored_as_what_reads_back_equal():
    order = Order(7, [Line(Sku("a"), 2, Decimal("9.90"))], Carrier.BIKE, MOMENT, {"a": "b"})
    kind = PayloadType(Order)

    text = kind.accept(order)

    assert json.loads(text) == {
        "number": 7,
        "lines": [{"sku": "a", "quantity": 2, "price": "9.90"}],
        "carrier": "bike",
        "paid": "2026-01-31T12:00:05.123Z",
        "labels": {"a": "b"},
    }
    assert kind.read(decode(text)) == order


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (set[int], {1}, [1]),
        (tuple[int, Carrier], (1, Carrier.POST), [1, "post"]),
        (dict[UUID, Line], {ID: Line(Sku("a"), 1)}, {str(ID): line(price="1.00")}),
        (dict[Carrier, Size], {Carrier.BIKE: Size.LARGE}, {"bike": 2}),
        (Rights, Rights.READ | Rights.WRITE, 3),
        (Any, [Line(Sku("a"), 1)], [line(price="1.00")]),
    ],
)
def test_values_that_json_does_not_have_are_stored(annotation: Any, value: Any, stored: Any):
    kind = holder(annotation)

    assert decode(kind.accept(kind.cls(value))) == {"x": stored}
    assert decode(kind.accept({"x": value})) == {"x": stored}


def test_an_instance_is_checked_because_constructors_check_nothing():
    with pytest.raises(PayloadMismatch, match=r"^payload\.number: expected int, got str$"):
        PayloadType(Order).accept(Order("x", []))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Order, Address])
def test_an_instance_of_another_class_is_refused(kind: type):
    with pytest.raises(PayloadMismatch) as refusal:
        PayloadType(kind).accept(Tree("a"))

    assert str(refusal.value) == f"payload: expected {kind.__name__}, got Tree"


def test_an_instance_that_contains_itself_is_refused():
    tree = Tree("a")
    tree.children.append(tree)

    with pytest.raises(PayloadRejected, match=f"nested deeper than {DEPTH_LIMIT} levels"):
        PayloadType(Tree).accept(tree)


def test_what_cannot_be_stored_is_refused_as_in_any_payload():
    with pytest.raises(PayloadRejected, match=r"payload\.x: bytes is not JSON"):
        holder(Any).accept({"x": b"x"})
    with pytest.raises(PayloadRejected, match="larger than 10 bytes"):
        holder(str).accept({"x": "long enough"}, limit=10)


class Plain:
    """A class that says nothing of its attributes."""


@pytest.mark.parametrize("bad", [5, "Order", Plain, dict, int, list[Line], Order(1, []), Carrier])
def test_what_is_no_class_of_payloads_is_refused(bad: Any):
    with pytest.raises(TypeError, match=r"cannot describe a payload\. Give a class: a dataclass"):
        PayloadType(bad)


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (bytes, r"Holder\.x: bytes cannot be read from JSON\. Use dataclasses"),
        (list[Plain], r"Holder\.x: Plain cannot be read from JSON"),
        (type[Order], r"Holder\.x: type\[.*\] cannot be read"),
        (dict[int, str], r"Holder\.x: keys are text in JSON; int cannot be a key"),
        (Literal[b"x"], r"Holder\.x: the choice b'x' has no form in JSON"),
        (enum.Enum("Odd", {"A": (1, 2)}), r"Holder\.x: the choice <Odd.A: \(1, 2\)> has no form"),
    ],
)
def test_an_annotation_that_json_cannot_carry_is_refused(annotation: Any, problem: str):
    with pytest.raises(TypeError, match=problem):
        holder(annotation)


@dataclass
class Initialised:
    a: int
    rate: InitVar[int]


def test_a_variable_of_the_constructor_without_a_default_is_refused():
    with pytest.raises(TypeError, match=r"Initialised\.rate: an InitVar is no field"):
        PayloadType(Initialised)


@dataclass
class Early:
    later: Later


#: Made before `Later` is: as by a decorator further up in a module.
EARLY = PayloadType(Early)


@dataclass
class Later:
    a: int


@dataclass
class Lost:
    nothing: NoSuchName  # type: ignore[name-defined]  # noqa: F821


def test_a_class_that_is_defined_later_is_found_when_it_is_needed():
    assert EARLY.read({"later": {"a": 1}}) == Early(Later(1))


def test_a_name_that_never_exists_is_an_error_that_says_so():
    kind = PayloadType(Lost)

    for use in (kind.resolve, lambda: kind.read({"nothing": 1})):
        with pytest.raises(TypeError, match="Lost: name 'NoSuchName' is not defined; an annotat"):
            use()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is new in Python 3.12")
def test_aliases_are_read_as_what_they_stand_for():
    space: dict[str, Any] = {}
    exec("type Number = int\ntype Endless = list[Endless]", space)

    assert holder(space["Number"]).read({"x": 1}).x == 1
    with pytest.raises(TypeError, match="an alias contains itself"):
        holder(space["Endless"])


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    number: int
    lines: list[ModelLine] = []
    due: date | None = None
    wait: timedelta | None = None
    for_name: str = pydantic.Field("", alias="for")

    @pydantic.computed_field
    def double(self) -> int:
        return 2 * self.number


class ModelLine(pydantic.BaseModel):
    quantity: int = pydantic.Field(gt=0)


class Struct(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    lines: list[StructLine] = []
    due: date | None = None
    carrier: Carrier = Carrier.POST
    by_size: dict[int, str] = {}


class StructLine(msgspec.Struct):
    quantity: int

    def __post_init__(self) -> None:
        if self.quantity < 1:
            raise ValueError("too small")


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr = pydantic.SecretStr("")


class Logins(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    by_name: dict[str, list[Login]]
    #: Nothing that a JSON schema knows.
    note: Opaque | None = None


class Opaque: ...


class OpenLogin(Login):
    @pydantic.field_serializer("password", when_used="json")
    def show(self, value: pydantic.SecretStr) -> str:
        return value.get_secret_value()


@pydantic.dataclasses.dataclass
class PydanticData:
    number: int


def test_a_pydantic_model_is_read_strictly_and_stored_with_its_aliases():
    kind = PayloadType(Model)
    given = {"number": 1, "lines": [{"quantity": 2}], "due": "2026-01-31", "wait": "P1DT00H00M05S"}

    read = kind.read(given | {"for": "Ann"})

    assert (read.due, read.wait) == (date(2026, 1, 31), timedelta(days=1, seconds=5))
    assert (type(read), type(read.lines[0]), read.for_name) == (Model, ModelLine, "Ann")
    text = kind.accept(read)
    assert json.loads(text) == given | {"for": "Ann", "wait": "P1DT5S"}
    assert kind.read(decode(text)) == read


@pytest.mark.parametrize(
    ("given", "text", "value"),
    [
        ([], "payload: Input should be an object", ""),
        ({}, "payload.number: Field required", ""),
        ({"number": "x"}, "payload.number: Input should be a valid integer", ', got str "x"'),
        (
            {"number": 1, "lines": [{"quantity": 1}, {"quantity": 0}]},
            "payload.lines[1].quantity: Input should be greater than 0",
            ", got int 0",
        ),
        ({"number": 1, "a": []}, "payload.a: Extra inputs are not permitted", ""),
        (
            {"number": "x", "lines": 1},
            "payload.number: Input should be a valid integer (and 1 more)",
            ', got str "x"',
        ),
    ],
)
def test_a_mismatch_of_pydantic_names_the_place(given: Any, text: str, value: str):
    refusal = refused(PayloadType(Model), given)

    assert (str(refusal), refusal.value) == (text, value)
    assert refusal.origin == f"{__name__}:Model"


@pytest.mark.parametrize(
    "instance",
    [Login(user="ada", password="hidden"), Logins(by_name={"a": [Login(user="a", password="b")]})],
)
def test_a_secret_that_pydantic_writes_as_asterisks_is_refused(instance: Any):
    with pytest.raises(PayloadRejected, match="a secret would be stored as asterisks") as refusal:
        PayloadType(type(instance)).accept(instance)

    assert "hidden" not in str(refusal.value)


@pytest.mark.parametrize(
    ("instance", "text"),
    [
        (OpenLogin(user="ada", password="known"), '{"user":"ada","password":"known"}'),
        (Login(user="**********"), '{"user":"**********","password":""}'),
    ],
)
def test_a_secret_with_a_serializer_or_without_a_value_is_stored(instance: Any, text: str):
    assert PayloadType(type(instance)).accept(instance) == text


def test_a_pydantic_dataclass_is_read_by_pydantic():
    kind = PayloadType(PydanticData)

    assert kind.read({"number": "5"}) == PydanticData(5)
    assert kind.accept(PydanticData(5)) == '{"number":5}'
    assert "payload.number: Input should be a valid integer" in str(refused(kind, {"number": "x"}))


def test_a_struct_is_read_and_stored_by_msgspec():
    kind = PayloadType(Struct)
    given = {"number": 1, "lines": [{"quantity": 2}], "due": "2026-01-31", "by_size": {"1": "a"}}

    read = kind.read(given)

    assert read == Struct(1, [StructLine(2)], date(2026, 1, 31), by_size={1: "a"})
    text = kind.accept(read)
    assert json.loads(text) == given | {"carrier": "post"}
    assert kind.read(decode(text)) == read


@pytest.mark.parametrize(
    ("given", "text", "value"),
    [
        ([], "payload: Expected `object`, got `array`", ""),
        ({}, "payload: Object missing required field `number`", ""),
        (
            {"number": 1, "lines": [{"quantity": 1}, {"quantity": "x"}]},
            "payload.lines[1].quantity: Expected `int`, got `str`",
            "",
        ),
        ({"number": 1, "a": 1}, "payload: Object contains unknown field `a`", ""),
        ({"number": 1, "carrier": "ship"}, "payload.carrier: Invalid enum value", " 'ship'"),
        ({"number": 1, "lines": [{"quantity": 0}]}, "payload.lines[0]: too small", ""),
        (
            {"number": 1, "by_size": {"x": "a"}},
            "payload.by_size key: Expected `int`, got `str`",
            "",
        ),
    ],
)
def test_a_mismatch_of_msgspec_names_the_place(given: Any, text: str, value: str):
    refusal = refused(PayloadType(Struct), given)

    assert (str(refusal), refusal.value) == (text, value)
    assert refusal.origin == f"{__name__}:Struct"


@dataclass
class Mixed:
    model: ModelLine
    struct: StructLine


def test_classes_of_libraries_may_be_fields_of_a_dataclass():
    kind = PayloadType(Mixed)
    mixed = Mixed(ModelLine(quantity=1), StructLine(2))

    assert decode(kind.accept(mixed)) == {"model": {"quantity": 1}, "struct": {"quantity": 2}}
    refusal = refused(kind, {"model": {"quantity": 1}, "struct": {"quantity": "x"}})
    assert str(refusal) == "payload.struct.quantity: Expected `int`, got `str`"
    assert refusal.origin == f"{__name__}:Mixed.struct"


class EarlyModel(pydantic.BaseModel):
    later: LateModel


class EarlyStruct(msgspec.Struct):
    later: LateStruct


EARLY_OF_LIBRARIES = [PayloadType(EarlyModel), PayloadType(EarlyStruct)]


class LateModel(pydantic.BaseModel):
    a: int


class LateStruct(msgspec.Struct):
    a: int


def test_libraries_find_classes_that_are_defined_later():
    for kind in EARLY_OF_LIBRARIES:
        assert kind.read({"later": {"a": 1}}).later.a == 1


class LostModel(pydantic.BaseModel):
    nothing: NoSuchName  # type: ignore[name-defined]  # noqa: F821


class LostStruct(msgspec.Struct):
    nothing: NoSuchName  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("cls", [LostModel, LostStruct])
def test_a_name_that_never_exists_is_an_error_in_libraries_as_well(cls: type):
    with pytest.raises(TypeError, match="'NoSuchName' is not defined"):
        PayloadType(cls).resolve()


@pytest.fixture
def orders() -> Iterator[None]:
    payload_types.of_handlers["tests.orders"] = PayloadType(Order)
    yield
    del payload_types.of_handlers["tests.orders"]


def test_payloads_are_checked_by_kind_and_name(orders):
    for kind in (Kind.MESSAGE.value, Kind.ACTIVITY.value):
        payload_types.check(kind, "tests.orders", {"number": 1, "lines": []})
        payload_types.check(kind, "tests.others", [])
        with pytest.raises(PayloadMismatch, match="expected Order"):
            payload_types.check(kind, "tests.orders", [])
    payload_types.check(Kind.ORCHESTRATION.value, "tests.orders", [])


def test_another_kind_may_have_a_checker_of_its_own(monkeypatch):
    monkeypatch.setattr(payload_types, "_checkers", dict(payload_types._checkers))
    seen = []
    payload_types.register_checker("errand", lambda name, payload: seen.append((name, payload)))

    payload_types.check("errand", "any", {"a": 1})

    assert seen == [("any", {"a": 1})]


def test_any_error_of_a_checker_is_a_mismatch(monkeypatch):
    monkeypatch.setattr(payload_types, "_checkers", {"errand": lambda name, payload: payload["a"]})

    with pytest.raises(PayloadMismatch, match=r"^payload: KeyError: 'a'$"):
        payload_types.check("errand", "any", {})


@pytest.mark.process
def test_no_library_is_imported_for_other_classes():
    code = (
        "import dataclasses, sys\n"
        "from deadletter.payload_types import PayloadType\n"
        "kind = PayloadType(dataclasses.make_dataclass('Order', [('a', int)]))\n"
        "kind.accept(kind.cls(1))\n"
        "print(sorted({'pydantic', 'msgspec', 'typing_extensions'} & set(sys.modules)))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
