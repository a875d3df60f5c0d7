"""A site whose admin has another look: the theme named by THEME, none for Django's own."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

THEME = os.environ.get("THEME", "")

#: What each theme asks to be installed before the admin.
APPS = {
    "": [],
    "admin_interface": ["admin_interface", "colorfield"],
    "grappelli": ["grappelli"],
    "jazzmin": ["jazzmin"],
    "unfold": ["unfold"],
    # Our admin classes mixed with unfold's, as its documentation asks for.
    "unfold_classes": ["unfold"],
}

INSTALLED_APPS = [*APPS[THEME], *INSTALLED_APPS]
ROOT_URLCONF = "tests.browser.theme_urls"
X_FRAME_OPTIONS = "SAMEORIGIN"

# Light or dark as the browser asks; the themes differ in how they are told.
JAZZMIN_UI_TWEAKS = {"default_theme_mode": "auto"}
