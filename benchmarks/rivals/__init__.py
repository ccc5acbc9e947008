"""NNCF's accuracy control and AIMET's mixed precision on the tasks that the plugin is measured on."""
