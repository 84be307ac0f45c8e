from talerec.serve.http.app import App as App
from talerec.serve.http.messages import Response as Response
from talerec.serve.http.messages import compress as compress
