"""The receiver as an Azure Function (programming model 2).

Settings: WEBHOOK_SECRETS, with secrets separated by blanks, and DATABASE, a file for SQLite; a
database server of yours takes its place once there is more than one instance.
"""

import contextlib
import json
import logging
import os
import sqlite3

import azure.functions as func

import recipes
from receiver import read_secrets, receive

# Here and not in the function, so that an app without its settings does not start.
KEYS = read_secrets(os.environ.get("WEBHOOK_SECRETS"))
DATABASE = os.environ["DATABASE"]

app = func.FunctionApp()


@app.route(route="changes", methods=["POST"], auth_level=func.AuthLevel.FUNCTION)
def changes(request: func.HttpRequest) -> func.HttpResponse:
    try:
        database = sqlite3.connect(DATABASE)
        database.executescript(recipes.TABLES)
    except sqlite3.Error:
        logging.exception("the database cannot be opened")
        return func.HttpResponse(status_code=503)
    with contextlib.closing(database):
        take = recipes.upsert(database)
        status, answer = receive(KEYS, request.headers, request.get_body(), take)
    return func.HttpResponse(json.dumps(answer), status_code=status, mimetype="application/json")
