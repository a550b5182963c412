"""Capitals of the world: small tasks that bring their own rows, so that a first run needs no download."""

import unicodedata
from typing import NamedTuple

from eval_dagster.metrics.completion import ExactMatch, NormalizedExactMatch
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask
from eval_dagster.versions.hashes import stable_hash

_TABLE = {
    "africa": """
        Algeria: Algiers | Angola: Luanda | Botswana: Gaborone | Burkina Faso: Ouagadougou | Cabo Verde: Praia | Cameroon: Yaoundé
        the Central African Republic: Bangui | Chad: N'Djamena | the Comoros: Moroni | the Republic of the Congo: Brazzaville
        the Democratic Republic of the Congo: Kinshasa | Djibouti: Djibouti | Egypt: Cairo | Eritrea: Asmara | Ethiopia: Addis Ababa
        Gabon: Libreville | the Gambia: Banjul | Ghana: Accra | Guinea: Conakry | Guinea-Bissau: Bissau | Kenya: Nairobi
        Lesotho: Maseru | Liberia: Monrovia | Libya: Tripoli | Madagascar: Antananarivo | Malawi: Lilongwe | Mali: Bamako
        Mauritania: Nouakchott | Mauritius: Port Louis | Morocco: Rabat | Mozambique: Maputo | Namibia: Windhoek | Niger: Niamey
        Nigeria: Abuja | Rwanda: Kigali | São Tomé and Príncipe: São Tomé | Senegal: Dakar | Seychelles: Victoria
        Sierra Leone: Freetown | Somalia: Mogadishu | South Sudan: Juba | Sudan: Khartoum | Tanzania: Dodoma | Togo: Lomé
        Tunisia: Tunis | Uganda: Kampala | Zambia: Lusaka | Zimbabwe: Harare
    """,
    "asia": """
        Afghanistan: Kabul | Armenia: Yerevan | Azerbaijan: Baku | Bahrain: Manama | Bangladesh: Dhaka | Bhutan: Thimphu
        Brunei: Bandar Seri Begawan | Cambodia: Phnom Penh | China: Beijing | Cyprus: Nicosia | Georgia: Tbilisi | India: New Delhi
        Iran: Tehran | Iraq: Baghdad | Japan: Tokyo | Jordan: Amman | Kazakhstan: Astana | Kuwait: Kuwait City | Kyrgyzstan: Bishkek
        Laos: Vientiane | Lebanon: Beirut | Malaysia: Kuala Lumpur | Maldives: Malé | Mongolia: Ulaanbaatar | Myanmar: Naypyidaw
        Nepal: Kathmandu | North Korea: Pyongyang | Oman: Muscat | Pakistan: Islamabad | the Philippines: Manila | Qatar: Doha
        Saudi Arabia: Riyadh | Singapore: Singapore | South Korea: Seoul | Syria: Damascus | Tajikistan: Dushanbe | Thailand: Bangkok
        Timor-Leste: Dili | Turkey: Ankara | Turkmenistan: Ashgabat | the United Arab Emirates: Abu Dhabi | Uzbekistan: Tashkent
        Vietnam: Hanoi
    """,
    "europe": """
        Albania: Tirana | Andorra: Andorra la Vella | Austria: Vienna | Belarus: Minsk | Belgium: Brussels
        Bosnia and Herzegovina: Sarajevo | Bulgaria: Sofia | Croatia: Zagreb | the Czech Republic: Prague | Denmark: Copenhagen
        Estonia: Tallinn | Finland: Helsinki | France: Paris | Germany: Berlin | Greece: Athens | Hungary: Budapest
        Iceland: Reykjavík | Ireland: Dublin | Italy: Rome | Latvia: Riga | Liechtenstein: Vaduz | Lithuania: Vilnius
        Luxembourg: Luxembourg | Malta: Valletta | Moldova: Chișinău | Monaco: Monaco | Montenegro: Podgorica
        the Netherlands: Amsterdam | North Macedonia: Skopje | Norway: Oslo | Poland: Warsaw | Portugal: Lisbon | Romania: Bucharest
        Russia: Moscow | San Marino: San Marino | Serbia: Belgrade | Slovakia: Bratislava | Slovenia: Ljubljana | Spain: Madrid
        Sweden: Stockholm | Switzerland: Bern | Ukraine: Kyiv | the United Kingdom: London
    """,
    "north_america": """
        Antigua and Barbuda: Saint John's | the Bahamas: Nassau | Barbados: Bridgetown | Belize: Belmopan | Canada: Ottawa
        Costa Rica: San José | Cuba: Havana | Dominica: Roseau | the Dominican Republic: Santo Domingo | El Salvador: San Salvador
        Grenada: Saint George's | Guatemala: Guatemala City | Haiti: Port-au-Prince | Honduras: Tegucigalpa | Jamaica: Kingston
        Mexico: Mexico City | Nicaragua: Managua | Panama: Panama City | Saint Kitts and Nevis: Basseterre | Saint Lucia: Castries
        Saint Vincent and the Grenadines: Kingstown | Trinidad and Tobago: Port of Spain | the United States: Washington, D.C.
    """,
    "oceania": """
        Australia: Canberra | Fiji: Suva | the Marshall Islands: Majuro | Micronesia: Palikir | New Zealand: Wellington
        Palau: Ngerulmud | Papua New Guinea: Port Moresby | Samoa: Apia | the Solomon Islands: Honiara | Tonga: Nukuʻalofa
        Tuvalu: Funafuti | Vanuatu: Port Vila
    """,
    "south_america": """
        Argentina: Buenos Aires | Brazil: Brasília | Chile: Santiago | Colombia: Bogotá | Ecuador: Quito | Guyana: Georgetown
        Paraguay: Asunción | Peru: Lima | Suriname: Paramaribo | Uruguay: Montevideo | Venezuela: Caracas
    """,
}
CONTINENTS = tuple(_TABLE)


class Country(NamedTuple):
    """A state as a sentence names it: `the capital of <name>`."""

    continent: str
    name: str
    capital: str


def _parse(continent: str, block: str) -> list[Country]:
    entries = [entry.split(": ") for line in block.split("\n") for entry in line.split("|") if entry.strip()]
    return [Country(continent, name.strip(), capital.strip()) for name, capital in entries]


COUNTRIES = [country for continent, block in _TABLE.items() for country in _parse(continent, block)]


class _Capitals(BaseTask[str]):
    """The rows and the question, shared by both tasks."""

    DATASET_PATH = "capitals"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "test"
    SUBJECTS = CONTINENTS
    LANGUAGE = "en"
    SOURCE = "facts, compiled for this project (Apache-2.0)"

    def _load_dataset(self, subject: str) -> dict[str, list[Row]]:
        here = [country for country in COUNTRIES if country.continent == subject]
        return {"test": [_row(country, here) for country in here]}

    def _get_instruction_text(self, item: Row) -> str:
        return f"Q: What is the capital of {item['country']}?\nA:"

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {item['capital']}"


class CapitalsChoice(_Capitals):
    """Which of four cities is a country's capital; the others are capitals of the same continent."""

    NAME = "Capitals (choice)"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood, AccuracyNormLoglikelihood)

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f" {city}" for city in item["choices"]]

    def _get_ground_truth(self, item: Row) -> str:
        return f" {item['capital']}"


class CapitalsCompletion(_Capitals):
    """A country's capital in free text. It also counts without accents and without a district."""

    NAME = "Capitals (completion)"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (NormalizedExactMatch, ExactMatch)
    STOP_SEQUENCES = ("\n",)
    MAX_TOKENS = 16

    def _get_ground_truth(self, item: Row) -> list[str]:
        capital = item["capital"]
        return list(dict.fromkeys([capital, _without_accents(capital), capital.partition(",")[0]]))


def _row(country: Country, continent: list[Country]) -> Row:
    # Hashes stand in for a random generator: a country added to the table leaves most other rows as they are.
    others = sorted((other.capital for other in continent if other != country), key=lambda city: stable_hash([country.name, city]))
    choices = sorted([country.capital, *others[:3]], key=lambda city: stable_hash(["order", country.name, city]))
    return {"country": country.name, "capital": country.capital, "choices": choices}


def _without_accents(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text.replace("ʻ", ""))
    return "".join(letter for letter in letters if not unicodedata.combining(letter))
