"""Which addresses and URLs count as the public internet."""

import pytest

from worker.media.addresses import LONGEST_URL, Unusable, is_public, parsed

PUBLIC = """
    1.1.1.1 8.8.8.8 93.184.216.34 2606:4700:4700::1111 2a00:1450:4001::200e
    ::ffff:8.8.8.8 64:ff9b::8.8.8.8
"""
NOT_PUBLIC = """
    127.0.0.1 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 169.254.169.254
    172.16.0.1 192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.51.100.1
    203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 168.63.129.16
    :: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1
    64:ff9b::127.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 2001::1 2001:db8::1 2001:20::1
    2002:7f00:1:: 2002:808:808::1 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0
    2606:4700::1%1 fec0::1 ff02::1 localhost 1.1.1 0x7f.0.0.1 0177.0.0.1 2130706433
"""
# What they would reach is tested in test_ssrf.
AMBIGUOUS = """
    ftp://example.com/a file:///etc/passwd //example.com/a example.com/a http:example.com
    http:/example.com http:// https:///a http://user@example.com/ http://user:hunter2@example.com/
    http://:hunter2@example.com/ http://@example.com/ http://example.com:0/ http://example.com:22/
    http://example.com:25/ http://example.com:1023/ http://example.com:99999/ http://example.com:x/
    http://example/ http://exa%2emple.com/ http://example.com%00.org/ http://-example.com/
    http://example..com/ http://.example.com/ http://example.com\\@example.org/
    http://example.com/\\example.org/a http://exam\x00ple.com/ http://127.1/ http://1.1.1.0x1/
    http://[::1%25lo]/ http://[::1 http://[v1.a]/
"""


@pytest.mark.parametrize("address", PUBLIC.split())
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", [*NOT_PUBLIC.split(), "", " 1.1.1.1", "1.1.1.1\n"])
def test_an_address_of_anything_else_is_not(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    ("text", "host", "target"),
    [
        ("https://example.com", "example.com", "/"),
        ("HTTP://EXAMPLE.com./A%2fb?a=%2B%2F&x=%20#b", "EXAMPLE.com.", "/A%2fb?a=%2B%2F&x=%20"),
        ("http://example.com:8080/a.png", "example.com", "/a.png"),
        ("https://bücher.de/ä", "xn--bcher-kva.de", "/%C3%A4"),
        ("https://1.1.1.1/a", "1.1.1.1", "/a"),
        ("https://[2606:4700:4700::1111]/a", "2606:4700:4700::1111", "/a"),
        ("https://my_bucket.s3.amazonaws.com/a", "my_bucket.s3.amazonaws.com", "/a"),
    ],
)
def test_a_url_is_sent_as_it_was_written(text: str, host: str, target: str) -> None:
    url = parsed(text)
    assert (url.raw_host, url.raw_path_qs) == (host, target)


@pytest.mark.parametrize(
    "text",
    [
        *AMBIGUOUS.split(),
        "http://exa mple.com/",
        "\thttp://example.com/",
        "ht\ntp://example.com/",
        "https://example.com/" + "a" * LONGEST_URL,
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(Unusable) as caught:
        parsed(text)
    assert not {"example", "hunter2"} & set(str(caught.value).split())
