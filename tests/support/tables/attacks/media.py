"""A video or audio file that is a session description."""

import base64

# FFmpeg parses this as a session description if it recognizes no other format, and opens the port.
SESSION_PORT = 47004
SESSION = f"""
v=0
o=- 0 0 IN IP4 127.0.0.1
s=x
c=IN IP4 127.0.0.1
t=0 0
m=video {SESSION_PORT} RTP/AVP 96
a=rtpmap:96 H264/90000
""".encode()


def session_url(type_: str, mark: str) -> str:
    """Return a data URL with a session description after the magic bytes of a format."""
    return f"data:{type_};base64,{base64.b64encode(mark.encode() + SESSION).decode()}"
