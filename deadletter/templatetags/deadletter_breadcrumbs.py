"""Breadcrumbs in the markup of the admin: a list since Django 6.1, a line before."""

from __future__ import annotations

import django
from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()

#: Django 6.1 styles `ol.breadcrumbs` and draws separators by CSS; 5.2 and 6.0 `div.breadcrumbs`.
IS_LIST = django.VERSION >= (6, 1)


@register.simple_block_tag
def breadcrumbs(content: str) -> SafeString:
    """Wrap the crumbs of a page."""
    if IS_LIST:
        return format_html('<ol class="breadcrumbs">{}</ol>', content)
    return format_html('<div class="breadcrumbs">{}</div>', content)


@register.simple_block_tag
def crumb(content: str, url: str = "") -> SafeString:
    """Show one crumb: a link to `url`, or without it the current page, which is the last."""
    if not url:
        return format_html('<li aria-current="page">{}</li>' if IS_LIST else "{}", content)
    if IS_LIST:
        return format_html('<li><a href="{}">{}</a></li>', url, content)
    return format_html('<a href="{}">{}</a> &rsaquo; ', url, content)
