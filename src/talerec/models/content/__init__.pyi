from talerec.models.content.model import Content as Content
