"""Pictures, sounds and documents: the demo model takes none, and nothing may be fetched for it."""

import base64
from functools import partial

from support.tables.attacks.row import (
    EITHER,
    HELLO,
    PORT,
    Attack,
    Body,
    anthropic,
    chat,
    completion,
    count_tokens,
    params,
    raw,
    responses,
    tokenize,
    user,
)

HERE = f"http://127.0.0.1:{PORT}/x.png"
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)

ADDRESSES = [
    HERE,
    f"http://localhost:{PORT}/x.png",
    f"http://2130706433:{PORT}/x.png",
    f"http://0x7f000001:{PORT}/x.png",
    f"http://0177.0.0.1:{PORT}/x.png",
    f"http://127.1:{PORT}/x.png",
    f"http://0.0.0.0:{PORT}/x.png",
    f"http://[::ffff:127.0.0.1]:{PORT}/x.png",
    f"http://[::1]:{PORT}/x.png",
    f"http://user@127.0.0.1:{PORT}/x.png",
    f"http://example.org\\@127.0.0.1:{PORT}/x.png",
    f"http://127.0.0.1.:{PORT}/x.png",
    f"HTTP://127。0。0。1:{PORT}/x.png",
    "http://169.254.169.254/latest/meta-data/",
    "file:///etc/passwd",
    "file://localhost/proc/self/environ",
    "/etc/passwd",
    "../../../../etc/passwd",
    f"gopher://127.0.0.1:{PORT}/x",
    f"ftp://127.0.0.1:{PORT}/x",
    "data:image/png;base64,AAAA",
    "data:,",
    "",
]


# What FFmpeg takes for a session description if it knows nothing better: it opens the port.
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


def within(type_: str, file: bytes) -> str:
    return f"data:{type_};base64,{base64.b64encode(file).decode()}"


def picture(url: str) -> Body:
    return {"type": "image_url", "image_url": {"url": url}}


PARTS: dict[str, Body] = {
    "a picture's address alone": {"type": "image_url", "image_url": HERE},
    "a part without a type": {"image_url": HERE},
    "a picture that is null with a uuid": {
        "type": "image_url",
        "image_url": None,
        "uuid": "invoice-1",
    },
    "a picture with a uuid": {
        "type": "image_url",
        "image_url": {"url": PIXEL},
        "uuid": "invoice-1",
    },
    "a sound": {"type": "audio_url", "audio_url": {"url": HERE}},
    "a sound within": {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    "a film": {"type": "video_url", "video_url": {"url": HERE}},
    "a film that is a session description": {
        "type": "video_url",
        "video_url": {"url": within("video/mp4", b"xxxxxxxxAVI " + SESSION)},
    },
    "a sound that is a session description": {
        "type": "audio_url",
        "audio_url": {"url": within("audio/wav", b"xxxxxxxxWAVE" + SESSION)},
    },
    "embeddings of a picture": {"type": "image_embeds", "image_embeds": "gASVAAAA"},
    "embeddings of a sound": {"type": "audio_embeds", "audio_embeds": "gASVAAAA"},
    "embeddings of a film": {"type": "video_embeds", "video_embeds": "gASVAAAA"},
    "embeddings of a prompt": {"type": "prompt_embeds", "prompt_embeds": "gASVAAAA"},
    "a PIL picture": {"type": "image_pil", "image_pil": "gASVAAAA"},
    "a file": {"type": "file", "file": {"file_data": HERE, "filename": "x"}},
    "a picture of OpenAI's other kind": {"type": "input_image", "image_url": HERE},
}


def did_harm(name: str) -> bool:
    return "uuid" in name or "session" in name


ROWS = [
    *(
        Attack(
            f"a picture at {url or 'no address'} (chat)",
            partial(chat, messages=user([picture(url)])),
        )
        for url in ADDRESSES
    ),
    *(
        Attack(f"a picture at {url} (raw)", partial(dict, messages=user([picture(url)])))
        for url in ADDRESSES[:3] + ADDRESSES[14:15]
    ),
    *(
        Attack(f"{name} (chat)", partial(chat, messages=user([part])), harmful=did_harm(name))
        for name, part in PARTS.items()
    ),
    *(
        Attack(f"{name} (raw)", partial(dict, messages=user([part])), harmful=did_harm(name))
        for name, part in PARTS.items()
    ),
    Attack(
        "a picture in a system message (chat)",
        lambda: chat(messages=[{"role": "system", "content": [picture(HERE)]}, *HELLO]),
    ),
    Attack(
        "a picture in an assistant's message (chat)",
        lambda: chat(messages=[*HELLO, {"role": "assistant", "content": [picture(HERE)]}]),
        EITHER,
    ),
    Attack(
        "a picture in a tool's message (chat)",
        lambda: chat(
            messages=[*HELLO, {"role": "tool", "tool_call_id": "1", "content": [picture(HERE)]}]
        ),
        EITHER,
    ),
    Attack(
        "a picture (responses)",
        lambda: responses(input=user([{"type": "input_image", "image_url": HERE}])),
    ),
    Attack(
        "a file (responses)",
        lambda: responses(input=user([{"type": "input_file", "file_url": HERE}])),
    ),
    Attack(
        "a picture by its id (responses)",
        lambda: responses(input=user([{"type": "input_image", "file_id": "../../x"}])),
        EITHER,
    ),
    Attack(
        "a screenshot in a result (responses)",
        lambda: responses(
            input=[
                {
                    "type": "computer_call_output",
                    "call_id": "1",
                    "output": {"type": "computer_screenshot", "image_url": HERE},
                }
            ]
        ),
        EITHER,
    ),
    Attack(
        "a picture (messages)",
        lambda: anthropic(
            messages=user([{"type": "image", "source": {"type": "url", "url": HERE}}])
        ),
    ),
    Attack(
        "a picture within (messages)",
        lambda: anthropic(
            messages=user(
                [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
                    }
                ]
            )
        ),
    ),
    Attack(
        "a document (messages)",
        lambda: anthropic(
            messages=user([{"type": "document", "source": {"type": "url", "url": HERE}}])
        ),
        EITHER,
    ),
    Attack(
        "a picture in a tool's result (messages)",
        lambda: anthropic(
            messages=user(
                [
                    {
                        "type": "tool_result",
                        "tool_use_id": "1",
                        "content": [{"type": "image", "source": {"type": "url", "url": HERE}}],
                    }
                ]
            )
        ),
        EITHER,
    ),
    Attack(
        "a picture (count_tokens)",
        lambda: count_tokens(
            messages=user([{"type": "image", "source": {"type": "url", "url": HERE}}])
        ),
    ),
    Attack("a picture (tokenize)", lambda: tokenize(messages=user([picture(HERE)]))),
    Attack(
        "a picture in a list of conversations",
        lambda: {"messages_list": [user([picture(HERE)])], "sampling_params": {"max_tokens": 1}},
        EITHER,
    ),
    Attack("2,000 pictures (chat)", lambda: chat(messages=user([picture(HERE)] * 2_000))),
    Attack(
        "a picture of 9 MB (chat)",
        lambda: chat(messages=user([picture("data:image/png;base64," + "A" * 9_000_000)])),
    ),
    Attack(
        "a picture of 9 MB (raw)",
        lambda: {"messages": user([picture("data:image/png;base64," + "A" * 9_000_000)])},
    ),
    Attack("prompt_embeds (completions)", lambda: completion(prompt_embeds="gASVAAAA")),
    Attack("prompt_embeds (raw)", lambda: raw(prompt_embeds="gASVAAAA")),
    Attack("multi_modal_data (raw)", lambda: raw(multi_modal_data={"image": HERE})),
    Attack(
        "multi_modal_data in the prompt (raw)",
        lambda: raw(prompt={"prompt": "Hi", "multi_modal_data": {"image": HERE}}),
    ),
    Attack("mm_processor_kwargs (chat)", lambda: chat(mm_processor_kwargs={"size": 10**9})),
    Attack("media_io_kwargs (chat)", lambda: chat(media_io_kwargs={"image": {"x": 1}})),
    Attack(
        "use_audio_in_video among template arguments (chat)",
        lambda: chat(chat_template_kwargs={"use_audio_in_video": True}),
        EITHER,
    ),
    Attack("multi_modal_uuids (raw)", lambda: params(extra_args={"multi_modal_uuids": ["a"]})),
]
