from talerec.artifact.format import Bundle as Bundle
from talerec.artifact.format import check_target as check_target
from talerec.artifact.format import hold_for_update as hold_for_update
from talerec.artifact.format import read_artifact as read_artifact
from talerec.artifact.format import write_artifact as write_artifact
from talerec.artifact.install import install_artifact as install_artifact
from talerec.artifact.integrity import MANIFEST as MANIFEST
from talerec.artifact.integrity import read_manifest as read_manifest
