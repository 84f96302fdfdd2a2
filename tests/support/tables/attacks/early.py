"""The rows that are refused before an engine sees them, by their kind and name."""

EARLY = frozenset(
    """\
numbers: min_tokens 2**31 (raw)
numbers: min_tokens 2**31 (chat)
numbers: min_tokens 2**31 (completions)
numbers: seed 2**63 (raw)
numbers: seed 2**63 (chat)
numbers: seed 2**63 (completions)
numbers: seed 2**64 - 1 (raw)
numbers: seed 2**64 - 1 (chat)
numbers: logit_bias of 1,025 ids (raw)
numbers: logit_bias of 1,025 ids (chat)
numbers: logit_bias of 1,025 ids (completions)
numbers: 129 stop ids with min_tokens (raw)
numbers: 129 stop ids with min_tokens (chat)
numbers: 129 stop ids with min_tokens (completions)
numbers: a bad word of 1,100 words (raw)
numbers: a bad word of 1,100 words (chat)
numbers: a bad word of 1,100 words (completions)
numbers: 1,025 bad words (raw)
numbers: 1,025 bad words (chat)
numbers: 129 bad words (raw)
numbers: 129 bad words (chat)
numbers: seed -2**63 - 1
numbers: seed 2**63 in a stream
numbers: seed 2**63 in a chat's stream
numbers: n 10**9 (raw)
numbers: n 10**9 (chat)
numbers: n 10**9 (completions)
numbers: n -1 (raw)
numbers: n -1 (chat)
numbers: n -1 (completions)
numbers: top_k 2**64 (raw)
numbers: top_k 2**64 (chat)
numbers: presence_penalty 1e9 (raw)
numbers: presence_penalty 1e9 (chat)
numbers: presence_penalty 1e9 (completions)
numbers: frequency_penalty -1e9 (raw)
numbers: frequency_penalty -1e9 (chat)
numbers: repetition_penalty 1e300 (raw)
numbers: repetition_penalty 1e300 (chat)
numbers: repetition_penalty 1e300 (completions)
numbers: repetition_penalty 0 (raw)
numbers: repetition_penalty 0 (chat)
numbers: beam length_penalty -400 (raw)
numbers: beam length_penalty -400 (chat)
numbers: beam length_penalty -400 (completions)
numbers: beam length_penalty 400 (raw)
numbers: beam length_penalty 400 (chat)
numbers: beam length_penalty 1e308 (raw)
numbers: beam length_penalty 1e308 (chat)
numbers: beam with min_tokens 2**31 (raw)
numbers: presence_penalty NaN
numbers: repetition_penalty Infinity
numbers: length_penalty NaN
numbers: min_tokens 99999999
numbers: max_tokens 1e400
numbers: logit_bias {"5": Na
numbers: logit_bias {"5": In
numbers: logit_bias {"5": 1e
numbers: token ids of 2**64
grammars: three nested repetitions: chat
grammars: three nested repetitions: chat structured_outputs
grammars: three nested repetitions: chat stream
grammars: three nested repetitions: completions
grammars: three nested repetitions: responses
grammars: three nested repetitions: pattern in response_format
grammars: six nested repetitions: chat structured_outputs
grammars: six nested repetitions: responses
grammars: repetitions of groups without names: completions
grammars: one repetition of 10**9: chat
grammars: one repetition of 10**9: responses
grammars: one repetition of 10**9: pattern in response_format
grammars: two repetitions of 9,999: chat stream
grammars: repetitions in a class's shadow: chat
grammars: repetitions behind an escaped brace: responses
grammars: an expression of 200 KB: chat
grammars: an expression of 200 KB: chat structured_outputs
grammars: an expression of 200 KB: responses
grammars: an expression of 200 KB: pattern in response_format
grammars: an expression that is a number: llm_engine
grammars: nested repetitions: chat
grammars: nested repetitions: completions
grammars: nested repetitions: responses
grammars: 200 KB of rules: chat
grammars: 200 KB of rules: responses
grammars: 6,000 properties: chat structural_tag
grammars: 6,000 properties: completions response_format
grammars: 6,000 properties: chat response_format
grammars: 6,000 properties: responses text.format
grammars: 6,000 properties: messages output_config
grammars: a schema of 100 KB: chat response_format
grammars: a schema of 100 KB: responses text.format
grammars: a schema of 100 KB: messages output_config
grammars: 5,000 choices: chat response_format
grammars: 5,000 choices: responses text.format
grammars: 5,000 choices: messages output_config
grammars: nested repetitions in a pattern: chat response_format
grammars: nested repetitions in a pattern: completions response_format
grammars: nested repetitions in a pattern: chat structured_outputs
grammars: nested repetitions in a pattern: chat structural_tag
grammars: nested repetitions in a pattern: chat tool
grammars: nested repetitions in a pattern: chat strict tool
grammars: nested repetitions in a pattern: responses text.format
grammars: nested repetitions in a pattern: responses structured_outputs
grammars: nested repetitions in a pattern: responses tool
grammars: nested repetitions in a pattern: messages output_config
grammars: nested repetitions in a pattern: messages tool
grammars: nested repetitions in patternProperties: chat response_format
grammars: nested repetitions in patternProperties: responses text.format
grammars: nested repetitions in patternProperties: chat strict tool
grammars: a pattern in a definition: chat response_format
grammars: a pattern in a definition: chat tool
grammars: a pattern in a definition: responses text.format
grammars: a pattern in a definition: messages output_config
grammars: a choice of 1 MB (responses)
grammars: 10,000 choices (responses)
grammars: schema and regex at once (chat)
grammars: format and structured_outputs at once (chat)
grammars: a private key of structured_outputs (chat)
grammars: a backend by request (raw)
grammars: a structural tag with nested repetitions (chat)
grammars: a structural tag with a grammar (chat)
grammars: 100 KB in a structural tag's text (chat)
grammars: 30 tools with patterns (chat)
grammars: a reference to a file: chat response_format
grammars: a reference to a file: responses text.format
grammars: a reference to a server: chat response_format
grammars: a reference to a server: responses text.format
grammars: a private key of structured_outputs (responses)
texts: a tool's name of parameters (chat)
texts: an unknown key of slashes (raw)
texts: an unknown sampling parameter of slashes (raw)
texts: a route of slashes
texts: a truncation of parameters (responses)
texts: a reasoning effort of parameters (chat)
structure: 10,001 prompts
structure: 500,000 messages of 0 (raw)
structure: 500,000 messages of 0 (chat)
structure: 0, then 60,000 empty messages (chat)
structure: true, then 60,000 empty messages (chat)
structure: 0, then 60,000 empty messages (tokenize)
structure: 0, then 60,000 empty items (responses)
structure: 0, then 60,000 empty messages (messages)
structure: 2,000 items with unknown types (responses)
structure: 0, then 60,000 empty tools (chat)
structure: 0, then 60,000 empty prompts (completions)
structure: 0, then 60,000 texts (completions)
structure: 60,000 booleans as a prompt (completions)
structure: 0, then 60,000 texts to stop at (chat)
structure: 0, then 60,000 parts in a message (chat)
structure: 0, then 60,000 parts in a message (raw)
structure: 60,000 empty parts in a message (raw)
structure: 60,000 text parts in a message (raw)
structure: 2,000 messages of 2,000 parts (chat)
structure: 60,000 tool calls in a message (chat)
structure: 60,000 parts in a tool's result (messages)
structure: 60,000 empty tools (raw)
structure: 60,000 empty tools (messages)
structure: 60,000 empty tools (count_tokens)
structure: 60,000 system parts (messages)
structure: 60,000 empty tokens (detokenize)
structure: 60,000 unknown keys (raw)
structure: 60,000 unknown sampling parameters (raw)
structure: 300,000 empty lists as token ids (completions)
structure: 60,000 lists of one id (completions)
structure: 900 levels in a schema (raw)
structure: 500 levels of messages (chat)
structure: a whole number of 4,000 digits (chat)
structure: the input is a list
structure: the input is a text
structure: the input is empty
structure: all shapes at once
structure: messages are a text (raw)
structure: a message without a role (raw)
structure: no prompts
structure: a prompt for each of two sampling parameters
structure: sampling parameters are a list (raw)
structure: LLM Engine with 60,000 stop sequences
structure: 0, then 60,000 empty messages, eight at once (chat)
structure: 64 requests of 100 KB of zeros at once
structure: 10,000 prompts that are wrong
work: 100,000 stop strings (raw)
work: 100,000 stop strings, stream (raw)
work: 100,000 stop strings (chat)
work: 100,000 stop strings (completions)
work: 100,000 stop strings (messages)
work: 100,000 stop sequences (LLM Engine)
work: a bad word of 2 MB (raw)
work: a bad word of 2 MB (chat)
work: a bad word of 2 MB (completions)
work: 20,000 bad words (raw)
work: 20,000 bad words (chat)
work: a logit_bias of 500,000 (raw)
work: a logit_bias of 500,000 (chat)
work: a logit_bias of 500,000 (completions)
work: a logit_bias of 301 (raw)
work: 500,000 allowed ids (raw)
work: 500,000 stop ids (chat)
work: 500,000 logprob ids (raw)
work: n 257 (raw)
work: n 16,384 (chat)
work: n 16,384 (completions)
media: a picture that is null with a uuid (chat)
media: a picture with a uuid (chat)
media: embeddings of a picture (chat)
media: embeddings of a sound (chat)
media: embeddings of a film (chat)
media: embeddings of a prompt (chat)
media: a PIL picture (chat)
media: a file (responses)
media: prompt_embeds (completions)
media: prompt_embeds (raw)
media: multi_modal_data (raw)
media: multi_modal_data in the prompt (raw)
media: mm_processor_kwargs (chat)
media: media_io_kwargs (chat)
keys: kv_transfer_params in vllm_xargs (chat)
keys: kv_transfer_params in vllm_xargs (completions)
keys: kv_transfer_params in vllm_xargs (responses)
keys: ec_transfer_params in vllm_xargs (chat)
keys: vllm_xargs of 60,000 (chat)
keys: vllm_xargs with a list (completions)
keys: kv_transfer_params (chat)
keys: kv_transfer_params among template arguments (chat)
keys: kv_transfer_params (messages)
keys: logits_processors (raw)
keys: request_id (chat)
keys: priority of 2**64 (chat)
keys: priority (raw)
keys: structured_outputs is a list (chat)
keys: a name with NUL (raw)
keys: LLM Engine with sampling_params
keys: LLM Engine with a backend
keys: a format that is none
templates: 300,000 template arguments (chat)
templates: 300,000 template arguments (raw)
templates: 30,000 template arguments (tokenize)
templates: a template (raw)
templates: the template argument padding (chat)
templates: the template argument max_length (chat)
templates: the template argument max_length (raw)
templates: the template argument trust_remote_code (chat)
templates: the template argument strftime_now (chat)
templates: the template argument raise_exception (raw)
names: an adapter is loaded
names: a model that is a number (raw)
names: a fine-tune's suffix of a path (job)
names: the route /v1/load_lora_adapter (POST)
names: the route /sleep (POST)
names: the route /reset_prefix_cache (POST)
names: the route /inference/v1/generate (POST)
names: the route /inference/v1/abort_requests (POST)
names: the route /invocations (POST)
names: the route /collective_rpc (POST)
names: the route /server_info (GET)
names: the route /docs (GET)
names: the route /v1/../metrics/../sleep (POST)
names: the route /v1/chat/completions/../../../sleep (POST)
names: the route //v1//models (POST)
names: the route http://127.0.0.1/v1/models (GET)
names: the route /v1/audio/transcriptions (POST)
names: the route /v1/responses/resp_1 (GET)
names: the route /v1/responses/resp_1/cancel (POST)
names: the route  (GET)
names: a route that is a list
names: a body that is a list
""".splitlines()
)
