"""The packages that programs for BigCodeBench import, by the names under which they are imported."""

_STANDARD_LIBRARY = (
    "array ast base64 binascii bisect calendar cgi cmath codecs collections configparser csv ctypes datetime decimal difflib "
    "email enum errno fnmatch ftplib functools getpass glob gzip hashlib heapq hmac html http importlib inspect io ipaddress "
    "itertools json logging math mimetypes multiprocessing operator os pathlib pickle pkgutil platform queue random re select "
    "secrets shlex shutil signal smtplib socket sqlite3 ssl statistics string struct subprocess sys tarfile textwrap threading "
    "time turtle types typing unicodedata urllib uuid warnings xml zipfile zlib zoneinfo"
)
_SAME_NAME = (
    "blake3 chardet cryptography django flask folium gensim geopandas geopy holidays keras librosa lxml matplotlib mechanize "
    "natsort nltk numpy openpyxl pandas prettytable psutil pyquery pytesseract pytz regex requests rsa scipy seaborn sendgrid "
    "shapely soundfile statsmodels sympy tensorflow textblob texttable werkzeug wikipedia wordcloud wordninja wtforms xlwt "
    "xmltodict"
)
BIG_CODE_BENCH_PACKAGE_MAPPING: dict[str, str | None] = {
    **dict.fromkeys(_STANDARD_LIBRARY.split()),
    **{name: name for name in _SAME_NAME.split()},
    "PIL": "pillow",
    "Crypto": "pycryptodome",
    "Levenshtein": "python-Levenshtein",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "faker": "Faker",
    "flask_login": "flask-login",
    "flask_mail": "flask-mail",
    "flask_restful": "flask-restful",
    "flask_wtf": "flask-wtf",
    "mpl_toolkits": "matplotlib",
    "python_http_client": "python-http-client",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Module -> package to install; None for a module of the standard library."""
