"""200 made texts: with personal data in forms that people write, with what only looks like it, and with names.

Nobody's data: numbers are computed, and domains are those of RFC 2606 or of companies' public desks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

NONE, NAME = "", "name"
"""Kinds of texts without personal data, and with what only a language model finds."""


class Text(NamedTuple):
    """A text, and what in it is personal."""

    kind: str
    text: str
    secret: str = ""


def list_texts() -> list[Text]:
    """List the texts: 120 with data of a kind, 20 with names and addresses, 60 with what looks like data."""
    return [*_list_emails(), *_list_cards(), *_list_ibans(), *_list_phones(), *_list_ssns(), *_list_addresses(), *_list_names(), *_list_clean()]  # fmt: skip


def _list_emails() -> Iterator[Text]:
    names = ("anna.meier", "j.o'neil", "info+orders", "x_y", "ANNA", "b.l-2", "tom99", "maria.de.la.cruz", "q", "r.s.t")
    domains = ("example.com", "mail.example.org", "example.co.uk", "EXAMPLE.net", "example.de")
    for number in range(18):
        secret = f"{names[number % len(names)]}@{domains[number % len(domains)]}"
        yield Text("email", f"Please send the invoice {number} to {secret} today.", secret)
    yield Text("email", "Write to anna (at) example (dot) com if it breaks.", "anna (at) example (dot) com")
    yield Text("email", "Her login is anna@intranet on the old server.", "anna@intranet")


def _list_cards() -> Iterator[Text]:
    for number in range(20):
        prefix = ("4", "51", "37", "6011", "4000")[number % 5]
        digits = _complete_luhn(f"{prefix}{7_310_529_846_112 + 90_071 * number}"[: 14 if prefix == "37" else 15])
        grouped = " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))
        secret = (digits, grouped, grouped.replace(" ", "-"))[number % 3]
        yield Text("credit-card", f"My card {secret} was charged twice for order {number}.", secret)


def _list_ibans() -> Iterator[Text]:
    accounts = {"DE": "370400440532013", "GB": "NWBK6016133192681", "ES": "2100041845020005133", "NL": "ABNA041716430"}
    for number in range(20):
        country = tuple(accounts)[number % 4]
        account = f"{accounts[country]}{number % 10}"
        if country == "DE":
            account += "00"
        secret = f"{country}{_compute_iban_check(country, account)}{account}"
        if number % 2:
            secret = " ".join(secret[start : start + 4] for start in range(0, len(secret), 4))
        yield Text("iban", f"Transfer the deposit to {secret}, reference {number}.", secret)


def _list_phones() -> Iterator[Text]:
    phones = (
        "+49 30 901820", "+1 650-253-0000", "(212) 736-5000", "+44 20 7219 3000", "+33 1 40 20 53 17", "650.253.0000",
        "+49 (0)89 2180-0", "0044 20 7219 3000", "030 / 90 18 20", "+91 11 2301 2345", "+81 3-3581-5111", "415-555-2671",
        "+39 06 6982", "+55 11 3091-3116", "020 7219 3000", "1-800-275-2273", "+972 2-675-3333", "089 2180 0",
        "+61 2 6277 7111", "nine one one four",
    )  # fmt: skip
    for number, secret in enumerate(phones):
        yield Text("phone", f"Customer {chr(65 + number)} asked us to call back at {secret} after lunch.", secret)


def _list_ssns() -> Iterator[Text]:
    for number in range(20):
        parts = (f"{212 + 17 * number:03d}", f"{11 + 4 * number:02d}", f"{1203 + 311 * number:04d}")
        separator = ("-", "-", " ", "-", "")[number % 5]
        secret = separator.join(parts)
        yield Text("us-ssn", f"The applicant's social security number is {secret}, checked.", secret)


def _list_addresses() -> Iterator[Text]:
    for number in range(14):
        secret = f"{(10, 192, 172, 8)[number % 4]}.{16 + number}.{200 - number}.{7 * number + 1}"
        yield Text("ip", f"The login came from {secret} at noon.", secret)
    for secret in ("2001:db8::1", "fe80::1ff:fe23:4567:890a", "2001:0db8:85a3:0000:0000:8a2e:0370:7334", "::ffff:10.1.2.3", "2001:db8:0:1::42", "fd12:3456:789a::5"):  # fmt: skip
        yield Text("ip", f"Block {secret} in the firewall, please.", secret)


def _list_names() -> Iterator[Text]:
    people = ("Anna Meier", "John O'Neil", "Wei Zhang", "Fatima al-Sayed", "María de la Cruz")
    places = ("12 High Street, Leeds", "Hauptstr. 5, 10115 Berlin", "221B Baker Street", "5th Avenue 350")
    for number in range(20):
        secret = people[number % 5] if number % 2 else places[number % 4]
        yield Text(NAME, f"The parcel goes to {secret} on Monday.", secret)


def _list_clean() -> Iterator[Text]:
    alike = (
        "Order 4111 1111 1111 1112 is late.", "Version 2.14.1 fixed it.", "ISBN 978-3-16-148410-0 is out of print.",
        "The build took 1,234,567,890 cycles.", "Meet me @noon at gate B42.", "The function f(x) = 3.14159 * x ** 2.",
        "Commit 9f86d081884c7d659a2feaa0c55ad015 broke it.", "Ticket 2026-11-26-0042 is closed.",
        "Between 1914 and 1918, 65 million were drafted.", "UUID 123e4567-e89b-12d3-a456-426614174000 is unknown.",
        "The price is 1.299,00 EUR for 10 pieces.", "Use port 8080 and path /v1/models.", "Set a = b@c for matrices.",
        "Parcel 00340434161094042557 arrived.", "The ratio is 16:9, or 1.7778.", "Version 10.4.2.1 of the driver is out.",
        "Part 536-90-4399 is sold out.", "Serial number 650 253 0000 is unknown.", "0x7ffeefbff5c8 is the address.",
        "Coordinates 52.5200, 13.4050 are in the city.",
    )  # fmt: skip
    for number in range(60):
        filler = ("", " Thank you.", f" See chapter {number}.")[number // 20]
        yield Text(NONE, f"{alike[number % 20]}{filler}")


def _complete_luhn(digits: str) -> str:
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if position % 2 == 0 else 1)
        total += value - 9 if value > 9 else value
    return f"{digits}{-total % 10}"


def _compute_iban_check(country: str, account: str) -> str:
    number = "".join(str(int(character, 36)) for character in f"{account}{country}00")
    return f"{98 - int(number) % 97:02d}"
