"""Long lists in bodies, checked item by item: the first mistake is enough.

The checks of vLLM's server keep an error for each alternative of each wrong item: of 500 items of a
response's input half a gigabyte, and two seconds in which nobody else is answered.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from worker.engine.seam.locations import find
from worker.engine.seam.translation import wrong_shape
from worker.errors import InvalidInput

# The one route whose items have so many alternatives, and their list.
RESPONSES = "/v1/responses"
INPUT = "input"
# Few enough to be checked by the server alone.
FEW = 16


def check_items(path: str, body: Mapping[str, Any]) -> None:
    """Check the items of a long list as vLLM's server will, up to the first that is wrong.

    Raises:
        InvalidInput: naming the field.
    """
    items = body.get(INPUT)
    if path != RESPONSES or not isinstance(items, list) or len(items) <= FEW:
        return
    request = find("ResponsesRequest")
    for index, item in enumerate(items):
        try:
            # All of a request, since it also completes some items before it checks them.
            request.model_validate({INPUT: [item]})
        except ValidationError as invalid:
            place = f"{INPUT}.{index}"
            message = wrong_shape(invalid).message.replace(f"{INPUT}.0", place)
            raise InvalidInput(message, param=place) from None
