"""URLs that try to reach a server on the loopback interface, or a file on the disk."""

# Hosts that are this machine or an internal network, or could be parsed as such. The port of the
# canary is appended.
HOSTS = tuple(
    """
    127.0.0.1 127.0.0.2 127.1 127.0.1 0.0.0.0 0 2130706433 017700000001 0177.0.0.1 0x7f000001
    0x7f.0.0.1 0X7F.1 127.0.0.1. 127.0.0.01 00127.0.0.1 [::1] [::] [0:0:0:0:0:0:0:1]
    [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::127.0.0.1] [64:ff9b::7f00:1]
    [64:ff9b:1::7f00:1] [2002:7f00:1::] [::ffff:0:127.0.0.1] [fe80::1] [fe80::1%25lo] [fe80::1%lo]
    [::1%25lo] [fd00:ec2::254] localhost LOCALHOST localhost. localhost.localdomain ip6-localhost
    a.localhost 127.0.0.1.nip.io \uff11\uff12\uff17.0.0.1 ①②⑦.0.0.1 127。0。0。1 ⓛocalhost
    loc\xadalhost 169.254.169.254 [::ffff:169.254.169.254] 0xa9fea9fe 2852039166
    metadata.google.internal metadata 100.100.100.200 168.63.129.16 192.0.0.192 10.0.0.1
    172.16.0.1 192.168.1.1 100.64.0.1 224.0.0.1 255.255.255.255 user@127.0.0.1
    user:hunter2@127.0.0.1 example.com@127.0.0.1 example.com:80@127.0.0.1 127.0.0.1\\@example.com
    example.com\\@127.0.0.1 example.com#@127.0.0.1 example.com%23@127.0.0.1
    127.0.0.1%00.example.com 127.0.0.1\x00.example.com 127.0.0.1%2e %31%32%37.0.0.1 inside.example
    mixed.example mapped.example translated.example
    """.split()
)
# {port} is the canary's port, {file} the path of a file with a secret.
URLS = (
    *"""
    file://{file} FILE://{file} file://localhost{file} file:{file} {file}
    ../../../../../../../../../..{file} file://{file}%00.png gopher://127.0.0.1:{port}/_GET%20/
    ftp://127.0.0.1:{port}/ dict://127.0.0.1:{port}/ ldap://127.0.0.1:{port}/
    jar:http://127.0.0.1:{port}/!/ view-source:http://127.0.0.1:{port}/
    unix:///var/run/docker.sock blob:http://127.0.0.1:{port}/a
    javascript:fetch('http://127.0.0.1:{port}/') ws://127.0.0.1:{port}/ //127.0.0.1:{port}/
    http:127.0.0.1:{port}/ http:/127.0.0.1:{port}/ http:\\\\127.0.0.1:{port}\\
    http:///127.0.0.1:{port}/ data:http://127.0.0.1:{port}/
    data:image/png,http://127.0.0.1:{port}/ data:image/png;base64,http://127.0.0.1:{port}/
    data:text/html;base64,{playlist} data:video/mp4;base64,{playlist}
    data:application/vnd.apple.mpegurl;base64,{playlist} data:image/svg+xml;base64,{drawing}
    data:image/png;base64,{drawing} data:image/x-eps;base64,{script} DATA:image/png;base64,{link}
    """.split(),
    " http://127.0.0.1:{port}/",
    "\thttp://127.0.0.1:{port}/",
    "ht\ttp://127.0.0.1:{port}/",
    "ht\ntp://127.0.0.1:{port}/",
    "http\x00://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\r\nHost: example.com/",
)
PLAYLIST = "#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:{port}/a.ts\n#EXTINF:1,\nfile://{file}\n"
DRAWING = '<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1:{port}/"/></svg>'
SCRIPT = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n({file}) (r) file\n"

NAMES = {
    "localhost": [["127.0.0.1"]],
    "localhost.localdomain": [["127.0.0.1"]],
    "a.localhost": [["127.0.0.1"]],
    "127.0.0.1.nip.io": [["127.0.0.1"]],
    "metadata.google.internal": [["169.254.169.254"]],
    "metadata": [["169.254.169.254"]],
    "inside.example": [["127.0.0.1"]],
    "mixed.example": [["93.184.216.34", "127.0.0.1"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "translated.example": [["64:ff9b::7f00:1"]],
    # The first answer is harmless, the second is not. A client that resolves the name twice
    # connects to the second one.
    "rebinding.example": [["93.184.216.34"], ["127.0.0.1"]],
}
