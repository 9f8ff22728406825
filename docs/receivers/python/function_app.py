"""The receiver as an Azure Function (programming model 2).

Settings: WEBHOOK_SECRETS, with secrets separated by blanks, and DATABASE, a file for SQLite; a
database server of yours takes its place once there is more than one instance.
"""

import json
import os
import sqlite3

import azure.functions as func

import recipes
from receiver import receive

app = func.FunctionApp()


@app.route(route="changes", methods=["POST"], auth_level=func.AuthLevel.FUNCTION)
def changes(request: func.HttpRequest) -> func.HttpResponse:
    database = sqlite3.connect(os.environ["DATABASE"])
    try:
        database.executescript(recipes.TABLES)
        secrets = os.environ["WEBHOOK_SECRETS"].split(" ")
        take = recipes.upsert(database)
        status, answer = receive(secrets, request.headers, request.get_body(), take)
    finally:
        database.close()
    return func.HttpResponse(json.dumps(answer), status_code=status, mimetype="application/json")
