"""The receiver as an Azure Function (programming model 2).

The signature authenticates requests, so no function key is needed.
"""

import json

import azure.functions as func
from core.app import Receiver

# Here and not in the function, so that an app without its settings does not start.
RECEIVER = Receiver.from_environment()

app = func.FunctionApp()


@app.function_name(name="@@poller@@")
@app.route(route="@@poller@@", methods=["POST"], auth_level=func.AuthLevel.ANONYMOUS)
def receive(request: func.HttpRequest) -> func.HttpResponse:
    status, reply = RECEIVER.receive(request.headers, request.get_body())
    return func.HttpResponse(json.dumps(reply), status_code=status, mimetype="application/json")
